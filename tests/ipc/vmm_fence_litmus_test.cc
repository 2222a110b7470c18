// The rules of docs/ordering.md, each as a litmus test between two processes:
// one writes a buffer and signals, the other waits and must see all of it. The
// same without the wait sees something else, so that the test can fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "platform/base/hex.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/transfer.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

enum class Where { kWriters, kReaders, kHost };  // Whose memory the buffer is.
enum class Who { kStream, kKernel, kCpu };

struct Litmus {
  const char* name;
  Where memory;
  Who writer;
  Who reader;
  int reader_device;
  Where fences = Where::kHost;
  FenceMechanism mechanism = FenceMechanism::kStreamMemoryOperations;
  bool waits = true;
};

// Found by GoogleTest.
void PrintTo(const Litmus& litmus, std::ostream* out) { *out << litmus.name; }

constexpr std::size_t kWords = 1 << 18;  // 1 MiB: many pieces of a copy.

std::uint64_t RoundsOf(const Litmus& litmus) { return litmus.waits ? 150 : 60; }

// A kernel that adds 1 to each of kWords words: stores of a GPU's threads,
// where the others are a copy engine's or the driver's own.
class AddKernel {
 public:
  static bool IsPossible() {
    return !OnHostMemoryDriver();  // It runs functions of the host only.
  }
  AddKernel() {
    EXPECT_EQ(TestDriver()->cuModuleLoadData(&module_, kText), CUDA_SUCCESS);
    EXPECT_EQ(TestDriver()->cuModuleGetFunction(&add_, module_, "add"),
              CUDA_SUCCESS);
  }
  ~AddKernel() {
    EXPECT_EQ(TestDriver()->cuModuleUnload(module_), CUDA_SUCCESS);
  }
  void Launch(CUdeviceptr words, CUstream stream) const {
    constexpr unsigned kThreads = 256;
    void* arguments[] = {&words};
    EXPECT_EQ(
        TestDriver()->cuLaunchKernel(add_, kWords / kThreads, 1, 1, kThreads, 1,
                                     1, 0, stream, arguments, nullptr),
        CUDA_SUCCESS);
  }

 private:
  static constexpr char kText[] = R"(
.version 6.4
.target sm_60
.address_size 64
.visible .entry add(.param .u64 words)
{
  .reg .b32 %block, %threads, %thread, %value;
  .reg .b64 %words, %index, %offset;
  ld.param.u64 %words, [words];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %index, %thread;
  mad.wide.u32 %index, %block, %threads, %index;
  cvta.to.global.u64 %words, %words;
  shl.b64 %offset, %index, 2;
  add.u64 %words, %words, %offset;
  ld.global.u32 %value, [%words];
  add.u32 %value, %value, 1;
  st.global.u32 [%words], %value;
  ret;
}
)";
  CUmodule module_ = nullptr;
  CUfunction add_ = nullptr;
};

// The CPU's view of memory of the host.
std::atomic<std::uint32_t>* WordsAt(CUdeviceptr at) {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(
      static_cast<std::uintptr_t>(at));
}

std::string Hex(const FenceTicket& ticket) {
  const FenceTicketBytes bytes = EncodeFenceTicket(ticket);
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Fence ImportHex(ImportedFencePool& pool, const std::string& text) {
  const std::string bytes = platform::BytesFromHex(text).value_or("");
  return Must(pool.Import(
      Must(DecodeFenceTicket(
          {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})),
      Late()));
}

// The two fences of a test, and what they are in.
struct Fences {
  std::unique_ptr<ImportedFencePool> pool;
  std::optional<ImportedAllocation> memory;
  std::unique_ptr<FenceArray> array;
  std::optional<Fence> ready;
  std::optional<Fence> read;
};

// As the writer says: of a pool, or in memory that it sends.
void ReceiveFences(platform::Channel& channel, const Device& device,
                   Fences* fences) {
  std::istringstream words(Hear(channel));
  std::string text, ready_ticket, read_ticket;
  words >> text >> ready_ticket >> read_ticket;
  if (text != "array" && text != "kernels") {
    fences->pool = Must(ImportedFencePool::Subscribe(
        TestDriver(), text, {.devices = {device}}, Late()));
    fences->ready.emplace(ImportHex(*fences->pool, ready_ticket));
    fences->read.emplace(ImportHex(*fences->pool, read_ticket));
    return;
  }
  fences->memory.emplace(Must(ReceiveAllocation(
      channel, TestDriver(),
      {.grants = {{Location::On(device), Access::kReadWrite}}}, Late())));
  fences->array = Must(FenceArray::Over(
      device, fences->memory->address(), fences->memory->size(),
      text == "kernels" ? FenceMechanism::kKernels
                        : FenceMechanism::kStreamMemoryOperations));
  fences->ready.emplace(Must(fences->array->At(0)));
  fences->read.emplace(Must(fences->array->At(1)));
}

// Reads rounds of a buffer. args: address, rounds, "stream" or "cpu", the
// ordinal of its device, "wait" or not. Says how many words were wrong.
int LitmusReader(const Args& args) {
  const Here here;
  const platform::Driver& driver = TestDriver();
  const std::uint64_t rounds = std::stoull(args[1]);
  const bool by_cpu = args[2] == "cpu";
  const Device device = Must(Device::ByOrdinal(driver, std::stoi(args[3])));
  const bool waits = args[4] == "wait";
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation buffer =
      Must(ReceiveAllocation(channel, driver,
                             {.grants = {{Location::On(device), Access::kRead}},
                              .host_access = Access::kRead},
                             Late()));
  Fences fences;
  ReceiveFences(channel, device, &fences);
  Fence& ready = *fences.ready;
  Fence& read = *fences.read;
  CUstream stream = nullptr;
  EXPECT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  // Pinned: the copy is the stream's work, not the host's.
  void* pinned = nullptr;
  EXPECT_EQ(driver->cuMemHostAlloc(&pinned, kWords * 4, 0), CUDA_SUCCESS);
  const auto* const copy = static_cast<const std::uint32_t*>(pinned);
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const auto expected = static_cast<std::uint32_t>(round);
    if (by_cpu) {
      if (waits) Must(ready.WaitOnHost(round, Late()));
      const std::atomic<std::uint32_t>* const in = WordsAt(buffer.address());
      for (std::size_t i = 0; i < kWords; ++i) {
        wrong += in[i].load(std::memory_order_relaxed) != expected ? 1 : 0;
      }
      // Who did not wait has looked before the writer is let go: see there.
      if (!waits) Must(read.SignalFromHost(round));
      Must(ready.WaitOnHost(round, Late()));
      if (waits) Must(read.SignalFromHost(round));
      continue;
    }
    if (waits) Must(ready.Wait(stream, round));
    EXPECT_EQ(
        driver->cuMemcpyDtoHAsync(pinned, buffer.address(), kWords * 4, stream),
        CUDA_SUCCESS);
    if (!waits) Must(read.Signal(stream, round));
    Must(ready.Wait(stream, round));
    if (waits) Must(read.Signal(stream, round));
    EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    // All alike and one right: a thread sanitizer looks at each read of a loop.
    if (copy[0] == expected &&
        std::memcmp(copy, copy + 1, (kWords - 1) * sizeof(*copy)) == 0) {
      continue;
    }
    wrong += static_cast<std::uint64_t>(
        kWords - std::count(copy, copy + kWords, expected));
  }
  EXPECT_EQ(driver->cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  Tell(channel, absl::StrCat(wrong), kText);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kLitmusReader = RegisterChild("litmus-reader", &LitmusReader);

class FenceLitmus : public IpcTest,
                    public ::testing::WithParamInterface<Litmus> {
 protected:
  // Why this machine cannot run it; empty if it can.
  std::string WhyNot(const Litmus& litmus) {
    if (litmus.reader_device != 0 && Peer() == nullptr) {
      return "needs two devices";
    }
    return litmus.writer == Who::kKernel && !AddKernel::IsPossible()
               ? "this driver runs no kernels"
               : "";
  }

  Allocation MakeBuffer(const Litmus& litmus) {
    AllocationOptions options{.size = kWords * 4};
    if (litmus.memory == Where::kHost) {
      options.host_numa_node = 0;
      options.also = {{Location::HostNuma(0), Access::kReadWrite}};
    }
    if (litmus.memory != Where::kReaders) {
      return Must(Allocation::Create(device, options));
    }
    options.also = {{Location::On(device), Access::kReadWrite}};
    return Must(Allocation::Create(
        Must(Device::ByOrdinal(driver(), litmus.reader_device)), options));
  }

  // The writer's side of the fences.
  struct Made {
    std::unique_ptr<FencePool> pool;
    std::unique_ptr<Endpoint> endpoint;
    std::optional<Share> publication;
    std::optional<Allocation> memory;
    std::unique_ptr<FenceArray> array;
    std::optional<Fence> ready;
    std::optional<Fence> read;
  };

  void MakeFences(const Litmus& litmus, Made* made) {
    if (litmus.fences == Where::kHost) {
      FencePoolOptions options;
      options.devices = Must(Device::All(driver()));
      made->pool = Must(FencePool::Create(device, options));
      EndpointOptions where;
      where.listener.directory = listener_directory();
      made->endpoint = Must(Endpoint::Start(where));
      made->publication.emplace(
          Must(made->endpoint->Serve(made->pool->pool())));
      made->ready.emplace(Must(made->pool->New()));
      made->read.emplace(Must(made->pool->New()));
      return;
    }
    const int owner =
        litmus.fences == Where::kReaders ? litmus.reader_device : 0;
    AllocationOptions options{.size = 2 * kFenceBytes};
    if (owner != 0) {
      options.also = {{Location::On(device), Access::kReadWrite}};
    }
    made->memory.emplace(Must(
        Allocation::Create(Must(Device::ByOrdinal(driver(), owner)), options)));
    made->array =
        Must(FenceArray::Over(device, made->memory->address(),
                              made->memory->size(), litmus.mechanism));
    Must(made->array->Clear(Late()));
    made->ready.emplace(Must(made->array->At(0)));
    made->read.emplace(Must(made->array->At(1)));
  }

  static void SendFences(platform::Channel& channel, const Made& made) {
    if (made.pool != nullptr) {
      Tell(channel,
           absl::StrCat(made.publication->ticket(), " ",
                        Hex(Must(made.pool->Export(*made.ready))), " ",
                        Hex(Must(made.pool->Export(*made.read)))),
           kText);
      return;
    }
    Tell(channel,
         made.ready->mechanism() == FenceMechanism::kKernels ? "kernels"
                                                             : "array",
         kText);
    Must(SendAllocation(channel, made.memory->shareable(), Late()));
  }

  // How many words the reader saw that were not of their round.
  std::uint64_t CountWrong(const Litmus& litmus) {
    const Allocation buffer = MakeBuffer(litmus);
    Made fences;
    MakeFences(litmus, &fences);
    Fence& ready = *fences.ready;
    Fence& read = *fences.read;
    const std::uint64_t rounds = RoundsOf(litmus);
    Child child = Child::Start(
        "litmus-reader",
        {address(), absl::StrCat(rounds),
         litmus.reader == Who::kCpu ? "cpu" : "stream",
         absl::StrCat(litmus.reader_device), litmus.waits ? "wait" : "-"});
    platform::Channel channel = Accept();
    Must(SendAllocation(channel, buffer.shareable(), Late()));
    SendFences(channel, fences);
    CUstream stream = nullptr;
    EXPECT_EQ(driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    std::optional<AddKernel> kernel;
    if (litmus.writer == Who::kKernel) kernel.emplace();
    EXPECT_EQ(
        driver()->cuMemsetD8Async(buffer.address(), 0, kWords * 4, stream),
        CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      const auto value = static_cast<std::uint32_t>(round);
      // A reader that does not wait must come too early, and not by chance: two
      // processes on one GPU take turns, so that it would come late enough.
      const std::uint64_t read_first = litmus.waits ? round - 1 : round;
      if (litmus.writer == Who::kCpu) {
        Must(read.WaitOnHost(read_first, Late()));
        std::atomic<std::uint32_t>* const out = WordsAt(buffer.address());
        for (std::size_t i = 0; i < kWords; ++i) {
          out[i].store(value, std::memory_order_relaxed);
        }
        Must(ready.SignalFromHost(round));
      } else {
        // All rounds at once: no host is in between.
        Must(read.Wait(stream, read_first));
        if (kernel.has_value()) {
          kernel->Launch(buffer.address(), stream);
        } else {
          EXPECT_EQ(driver()->cuMemsetD32Async(buffer.address(), value, kWords,
                                               stream),
                    CUDA_SUCCESS);
        }
        Must(ready.Signal(stream, round));
      }
    }
    std::uint64_t wrong = 0;
    // All rounds are behind it, which a sanitizer makes many times slower.
    const platform::Message answer =
        Must(channel.Receive(absl::Now() + absl::Seconds(120)));
    EXPECT_TRUE(absl::SimpleAtoi(
        std::string(answer.payload.begin(), answer.payload.end()), &wrong));
    EXPECT_EQ(driver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(child.Wait(), 0);
    return wrong;
  }
};

TEST_P(FenceLitmus, WhatWasWrittenBeforeTheSignalIsSeenAfterTheWait) {
  Litmus litmus = GetParam();
  if (std::string why = WhyNot(litmus); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(CountWrong(litmus), 0u);
}

TEST_P(FenceLitmus, WithoutTheWaitItIsNot) {
  Litmus litmus = GetParam();
  if (std::string why = WhyNot(litmus); !why.empty()) GTEST_SKIP() << why;
  litmus.waits = false;
  EXPECT_GT(CountWrong(litmus), 0u) << "the litmus test cannot fail";
}

INSTANTIATE_TEST_SUITE_P(
    Ordering, FenceLitmus,
    ::testing::Values(
        Litmus{"LocalMemory", Where::kWriters, Who::kStream, Who::kStream, 0},
        Litmus{"PeerReads", Where::kWriters, Who::kStream, Who::kStream, 1},
        Litmus{"PeerWrites", Where::kReaders, Who::kStream, Who::kStream, 1},
        Litmus{"HostMemory", Where::kHost, Who::kStream, Who::kStream, 0},
        Litmus{"HostMemoryOfTwoDevices", Where::kHost, Who::kStream,
               Who::kStream, 1},
        Litmus{"HostMemoryToTheCpu", Where::kHost, Who::kStream, Who::kCpu, 0},
        Litmus{"HostMemoryFromTheCpu", Where::kHost, Who::kCpu, Who::kStream,
               0},
        Litmus{"LocalMemoryByAKernel", Where::kWriters, Who::kKernel,
               Who::kStream, 0},
        Litmus{"PeerReadsWhatAKernelWrote", Where::kWriters, Who::kKernel,
               Who::kStream, 1},
        Litmus{"PeerWritesByAKernel", Where::kReaders, Who::kKernel,
               Who::kStream, 1},
        Litmus{"HostMemoryByAKernelToTheCpu", Where::kHost, Who::kKernel,
               Who::kCpu, 0},
        Litmus{"HostMemoryBetweenCpus", Where::kHost, Who::kCpu, Who::kCpu, 0},
        Litmus{"LocalMemoryByFencesThere", Where::kWriters, Who::kStream,
               Who::kStream, 0, Where::kWriters},
        Litmus{"PeerReadsByFencesOfTheReader", Where::kWriters, Who::kStream,
               Who::kStream, 1, Where::kReaders},
        Litmus{"PeerReadsByFencesOfTheWriter", Where::kWriters, Who::kStream,
               Who::kStream, 1, Where::kWriters},
        Litmus{"PeerWritesByFencesOfTheReader", Where::kReaders, Who::kStream,
               Who::kStream, 1, Where::kReaders},
        Litmus{"PeerWritesByFencesOfTheWriter", Where::kReaders, Who::kStream,
               Who::kStream, 1, Where::kWriters},
        Litmus{"PeerWritesByAKernelByFencesOfTheReader", Where::kReaders,
               Who::kKernel, Who::kStream, 1, Where::kReaders},
        Litmus{"HostMemoryToTheCpuByFencesOfADevice", Where::kHost,
               Who::kStream, Who::kCpu, 0, Where::kWriters},
        Litmus{"HostMemoryFromTheCpuByFencesOfADevice", Where::kHost, Who::kCpu,
               Who::kStream, 0, Where::kWriters},
        Litmus{"LocalMemoryWithKernelsThatWait", Where::kWriters, Who::kStream,
               Who::kStream, 0, Where::kWriters, FenceMechanism::kKernels},
        Litmus{"PeerReadsWithKernelsThatWait", Where::kWriters, Who::kStream,
               Who::kStream, 1, Where::kReaders, FenceMechanism::kKernels},
        Litmus{"PeerWritesWithKernelsThatWait", Where::kReaders, Who::kStream,
               Who::kStream, 1, Where::kReaders, FenceMechanism::kKernels},
        Litmus{"PeerWritesByAKernelWithKernelsThatWait", Where::kReaders,
               Who::kKernel, Who::kStream, 1, Where::kReaders,
               FenceMechanism::kKernels}),
    [](const auto& which) { return std::string(which.param.name); });

}  // namespace
}  // namespace vmm::testing
