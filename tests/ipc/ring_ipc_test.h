// What the tests of rings between two processes share.
#ifndef VMMSHARE_TESTS_IPC_RING_IPC_TEST_H_
#define VMMSHARE_TESTS_IPC_RING_IPC_TEST_H_

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/memory/allocation.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
inline constexpr std::uint64_t kBytes = 256 << 10;
inline constexpr absl::Duration kMoment = absl::Milliseconds(20);

// What item `number` is filled with.
inline unsigned WordOf(std::uint64_t number) {
  return static_cast<unsigned>(number * 2654435761u);
}

inline void FillItem(const RingBuffer& buffer, CUstream stream) {
  EXPECT_EQ(TestDriver()->cuMemsetD32Async(
                buffer.address, WordOf(buffer.number), buffer.size / 4, stream),
            CUDA_SUCCESS);
}

// Where a reader puts what comes, in the stream's order, to look at it later.
class Results {
 public:
  Results(const Device& device, std::uint64_t room)
      : memory_(Must(Allocation::Create(device, {.size = room * kBytes}))) {}
  void Take(const RingBuffer& buffer, CUstream stream) {
    EXPECT_EQ(TestDriver()->cuMemcpyDtoDAsync(
                  memory_.address() + numbers_.size() * kBytes, buffer.address,
                  kBytes, stream),
              CUDA_SUCCESS);
    numbers_.push_back(buffer.number);
  }
  // How many are wrong. REQUIRES: the stream has passed.
  std::size_t Wrong() const {
    std::size_t wrong = 0;
    std::vector<std::uint32_t> words(kBytes / 4);
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      EXPECT_EQ(TestDriver()->cuMemcpyDtoH(
                    words.data(), memory_.address() + i * kBytes, kBytes),
                CUDA_SUCCESS);
      wrong +=
          words != std::vector<std::uint32_t>(kBytes / 4, WordOf(numbers_[i]));
    }
    return wrong;
  }

 private:
  Allocation memory_;
  std::vector<std::uint64_t> numbers_;
};

// A process that reads a ring as it is told. args: where to dial for orders
// and, after that, for the ring; the ordinal of its device.
class ReaderProcess {
 public:
  explicit ReaderProcess(const std::vector<std::string>& args)
      : device_(Must(Device::ByOrdinal(TestDriver(), std::stoi(args[1])))),
        address_(args[0]),
        orders_(Dial(args[0])) {}

  int Serve() {
    for (;;) {
      absl::StatusOr<platform::Message> message = orders_.Receive(Late());
      if (!message.ok()) return ::testing::Test::HasFailure() ? 1 : 0;
      Tell(orders_, Do({message->payload.begin(), message->payload.end()}),
           kText);
    }
  }

 private:
  std::string Do(const std::string& order) {
    std::istringstream words(order);
    std::string what;
    std::uint64_t count = 1;
    words >> what >> count;
    if (what == "join") {
      absl::StatusOr<std::unique_ptr<RingReader>> ring =
          RingReader::Open(device_, Dial(address_), {}, Late());
      if (!ring.ok()) return ring.status().ToString();
      ring_ = *std::move(ring);
      return "OK";
    }
    if (what == "leave") {
      ring_.reset();
      return "OK";
    }
    if (what == "acquire") return Acquire(Late());
    if (what == "try") return Acquire(absl::Now() + kMoment);
    if (what == "release") {
      return ring_->Release(buffer_, stream_.get()).ToString();
    }
    if (what == "await") return ring_->Await(buffer_, Late()).ToString();
    if (what == "finish") return ring_->Finish(Late()).ToString();
    if (what == "let-go") {
      ring_->LetGo();
      return "OK";
    }
    if (what == "sync") {
      stream_.Sync();
      return "OK";
    }
    if (what == "idle") return stream_.IsIdle() ? "idle" : "busy";
    if (what == "consume") return Consume(count);
    platform::Die(absl::StrCat("a reader was told: ", order));
  }

  std::string Acquire(absl::Time deadline) {
    absl::StatusOr<RingBuffer> buffer = ring_->Acquire(stream_.get(), deadline);
    if (!buffer.ok()) return buffer.status().ToString();
    buffer_ = *buffer;
    return absl::StrCat("OK ", buffer->number, " ", buffer->size, " ",
                        buffer->tag);
  }

  // Until the end. What comes is looked at last, so that no host waits before.
  std::string Consume(std::uint64_t room) {
    Results results(device_, room);
    std::uint64_t came = 0;
    for (;;) {
      absl::StatusOr<RingBuffer> buffer = ring_->Acquire(stream_.get(), Late());
      if (absl::IsOutOfRange(buffer.status())) break;
      if (!buffer.ok()) return buffer.status().ToString();
      results.Take(*buffer, stream_.get());
      if (buffer->number != ++came) return absl::StrCat("not item ", came);
      const absl::Status freed = ring_->Release(*buffer, stream_.get());
      if (!freed.ok()) return freed.ToString();
    }
    const absl::Status finished = ring_->Finish(Late());
    if (!finished.ok()) return finished.ToString();
    stream_.Sync();
    return absl::StrCat(came, " came, ", results.Wrong(), " wrong");
  }

  const Here here_;
  const Device device_;
  const std::string address_;
  platform::Channel orders_;
  PrimaryContext context_ = Must(PrimaryContext::Retain(device_));
  CurrentContext current_ = Must(context_.MakeCurrent());
  Stream stream_;
  std::unique_ptr<RingReader> ring_;
  RingBuffer buffer_;
};

class RingTest : public IpcTest {
 protected:
  void SetUp() override { home_ = Must(RingHome::Create(device, Where())); }
  RingHomeOptions Where() {
    RingHomeOptions options;
    options.endpoint.listener.directory = listener_directory();
    return options;
  }
  void StartReader(int ordinal = 0) {
    child_.emplace(
        Child::Start("ring-reader", {address(), absl::StrCat(ordinal)}));
    orders_.emplace(Accept());
  }
  // A ring to a new reader process.
  void OpenRing(std::uint32_t buffers, int ordinal = 0) {
    StartReader(ordinal);
    Order("join");
    ring_ = Must(RingWriter::Open(
        *home_, Accept(), {.buffers = buffers, .bytes = kBytes}, Late()));
    EXPECT_EQ(Answer(), "OK");
  }
  void Order(const std::string& what) { Tell(*orders_, what, kText); }
  std::string Answer() { return Hear(*orders_); }
  std::string Ask(const std::string& what) {
    Order(what);
    return Answer();
  }
  RingBuffer Put(CUstream stream) {
    const RingBuffer buffer = Must(ring_->Acquire(stream, Late()));
    FillItem(buffer, stream);
    ExpectOk(ring_->Publish(buffer, stream, Late()));
    return buffer;
  }
  void KillReader() {
    child_->Kill();
    EXPECT_EQ(child_->Wait(), Child::kKilled);
  }
  void EndReader() {
    EXPECT_EQ(Ask("leave"), "OK");
    orders_->Close();
    EXPECT_EQ(child_->Wait(), 0);
  }
  // All of the ring's memory has come back to its home.
  void ExpectAllIsBack() {
    ring_.reset();
    ExpectSoon([this] {
      Must(home_->pool().Trim());
      const PoolStatistics now = home_->pool().statistics();
      return now.live_blocks == 0 && now.held == 0 && now.reserved == 0;
    });
    EXPECT_EQ(home_->fences().statistics().fences, 0u);
    EXPECT_EQ(home_->fences().statistics().waiting, 0u);
  }
  static void ExpectOk(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(words));
  }

  std::unique_ptr<RingHome> home_;
  std::unique_ptr<RingWriter> ring_;
  std::optional<Child> child_;
  std::optional<platform::Channel> orders_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_RING_IPC_TEST_H_
