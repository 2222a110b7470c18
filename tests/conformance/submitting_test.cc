// Which calls return before their work is done, and which do not: "API
// synchronization behavior" in NVIDIA's documentation of the driver API. A
// program that fills memory and then tells a peer relies on it.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Submitting : public Conformance {
 protected:
  // Holds up the NULL stream, and lets it go when told to or after a while: a
  // driver that waits where it should not then fails the test and not its time.
  class Held {
   public:
    Held(Submitting& test, std::chrono::milliseconds at_most)
        : test_(test), thread_([this, at_most] { LetGoAfter(at_most); }) {
      EXPECT_EQ(test_.cu.cuStreamWaitValue64(nullptr, test_.flag, 1,
                                             CU_STREAM_WAIT_VALUE_EQ),
                CUDA_SUCCESS);
    }
    ~Held() { LetGo(); }

    // The stream may go on as of now, and has not before: true if nobody else
    // has let it go.
    bool LetGo() {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        told_ = true;
        changed_.notify_all();
      }
      if (thread_.joinable()) thread_.join();
      return !by_itself_;
    }
    // Whether the stream still stands.
    bool stands() const { return !by_itself_; }

   private:
    void LetGoAfter(std::chrono::milliseconds at_most) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!changed_.wait_for(lock, at_most, [this] { return told_; })) {
          by_itself_ = true;
        }
      }
      EXPECT_EQ(test_.cu.cuStreamWriteValue64(test_.other, test_.flag, 1, 0),
                CUDA_SUCCESS);
    }

    Submitting& test_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool told_ = false;
    std::atomic<bool> by_itself_{false};
    std::thread thread_;
  };
  // For calls that must return at once, and for those that must not.
  static constexpr std::chrono::milliseconds kTooLong{20'000};
  static constexpr std::chrono::milliseconds kAWhile{100};

  Submitting() : flag(Memory()), memory(Memory()), other(MakeStream()) {
    EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  // A byte as it is now, whatever the NULL stream does.
  int Now(CUdeviceptr address) {
    std::uint8_t byte = 0xee;
    EXPECT_EQ(cu.cuMemcpyDtoHAsync(&byte, address, 1, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    return byte;
  }

  std::uint8_t* Pinned() {
    void* block = nullptr;
    EXPECT_EQ(cu.cuMemHostAlloc(&block, 4096, 0), CUDA_SUCCESS);
    Later([this, block] { EXPECT_EQ(cu.cuMemFreeHost(block), CUDA_SUCCESS); });
    std::memset(block, 0, 4096);
    return static_cast<std::uint8_t*>(block);
  }

  const CUdeviceptr flag;
  const CUdeviceptr memory;
  const CUstream other;
};

TEST_F(Submitting, AFillOfDeviceMemoryDoesNotWait) {
  Held held(*this, kTooLong);
  EXPECT_EQ(cu.cuMemsetD8(memory, 5, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32(memory + 4096, 0x07070707, 1024), CUDA_SUCCESS);
  EXPECT_TRUE(held.stands());
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Now(memory), 0);
  EXPECT_EQ(Now(memory + 4096), 0);
  EXPECT_TRUE(held.LetGo());
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Now(memory), 5);
  EXPECT_EQ(Now(memory + 4096), 7);
}

TEST_F(Submitting, ACopyBetweenDevicesDoesNotWait) {
  ASSERT_EQ(cu.cuMemsetD8Async(memory, 5, 4096, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  Held held(*this, kTooLong);
  EXPECT_EQ(cu.cuMemcpyDtoD(memory + 8192, memory, 4096), CUDA_SUCCESS);
  EXPECT_TRUE(held.stands());
  EXPECT_EQ(Now(memory + 8192), 0);
  EXPECT_TRUE(held.LetGo());
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Now(memory + 8192), 5);
}

TEST_F(Submitting, ACopyToTheHostWaits) {
  std::uint8_t* const pinned = Pinned();
  std::vector<std::uint8_t> pageable(4096, 0);
  for (std::uint8_t* to : {pinned, pageable.data()}) {
    ASSERT_EQ(cu.cuMemsetD32Async(flag, 0, 2, other), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    Held held(*this, kAWhile);
    EXPECT_EQ(cu.cuMemsetD8(memory, 5, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoH(to, memory, 4096), CUDA_SUCCESS);
    EXPECT_FALSE(held.stands()) << "returned before its turn";
    EXPECT_EQ(to[4095], 5);
  }
}

TEST_F(Submitting, AFillOfPinnedHostMemoryWaits) {
  std::uint8_t* const pinned = Pinned();
  Held held(*this, kAWhile);
  EXPECT_EQ(cu.cuMemsetD8(reinterpret_cast<CUdeviceptr>(pinned), 5, 4096),
            CUDA_SUCCESS);
  EXPECT_FALSE(held.stands()) << "returned before its turn";
  EXPECT_EQ(pinned[4095], 5);
}

TEST_F(Submitting, ACopyFromPinnedHostMemoryWaits) {
  std::uint8_t* const pinned = Pinned();
  std::memset(pinned, 5, 4096);
  Held held(*this, kAWhile);
  EXPECT_EQ(cu.cuMemcpyHtoD(memory, pinned, 4096), CUDA_SUCCESS);
  EXPECT_FALSE(held.stands()) << "returned before its turn";
  EXPECT_EQ(Now(memory + 4095), 5);
}

// It may return before the bytes are there, but not before it has read them.
TEST_F(Submitting, ASourceInPageableMemoryMayBeReusedAtOnce) {
  Held held(*this, kAWhile);
  std::vector<std::uint8_t> bytes(1 << 20, 5);
  EXPECT_EQ(cu.cuMemcpyHtoD(memory, bytes.data(), bytes.size()), CUDA_SUCCESS);
  bytes.assign(bytes.size(), 9);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Now(memory), 5);
  EXPECT_EQ(Now(memory + (1 << 20) - 1), 5);
}

}  // namespace
}  // namespace vmm::testing
