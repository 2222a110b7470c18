// A process is killed in the middle of a kernel that writes to a shared block,
// which its owner has freed. Once the pool hands that memory out again nobody
// writes to it any more. Where there are no kernels, it is killed in the middle
// of one fill after another.
//
// A killed process that had forked leaves its context, and so its kernel, to the
// child: then the memory is handed out after the end of that one only.
//
// VMMSHARE_KERNEL_KILLS: how often. The same is tried without the pool, with
// memory that is used again as soon as the writer has hung up: how often that
// meets foreign writes is printed, to show that they can be seen.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/party.h"
#include "tests/support/fork.h"
#include "tests/support/how_many.h"
#include "tests/support/mps.h"
#include "tests/support/test_driver.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

constexpr std::uint64_t kBytes = 4 * kMiB;
constexpr unsigned kForeign = 0x66666666;  // What the kernel writes.
constexpr unsigned kOurs = 0x0f0f0f0f;
// Of the victim's own, so that its end shows in the device's free memory.
constexpr std::uint64_t kVictimsOwn = 256 * kMiB;
constexpr absl::Duration kLookFor = absl::Milliseconds(20);
// A kernel whose process is not killed ends by itself.
constexpr std::uint64_t kKernelNanoseconds = 30'000'000'000;
// By how much a forked child outlives its parent, where it ends by itself.
absl::Duration Outliving() {
  return OnHostMemoryDriver() ? absl::Seconds(1) : absl::Seconds(5);
}
// Writers at once, where each run takes seconds.
constexpr std::uint64_t kAtOnce = 20;

bool KernelsRun() {
  return !OnHostMemoryDriver();  // It runs functions of the host only.
}

// Writes `value` to all words, over and over, and says so in `running`.
constexpr char kScribble[] = R"(
.version 6.4
.target sm_60
.address_size 64
.visible .entry scribble(.param .u64 words, .param .u32 count,
                         .param .u32 value, .param .u64 running,
                         .param .u64 nanoseconds)
{
  .reg .pred %end, %again;
  .reg .b32 %count, %value, %index, %step, %block, %blocks, %threads, %thread;
  .reg .b64 %words, %running, %limit, %start, %now, %at, %offset;
  ld.param.u64 %words, [words];
  ld.param.u32 %count, [count];
  ld.param.u32 %value, [value];
  ld.param.u64 %running, [running];
  ld.param.u64 %limit, [nanoseconds];
  cvta.to.global.u64 %words, %words;
  cvta.to.global.u64 %running, %running;
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %thread, %block, %threads, %thread;
  mul.lo.u32 %step, %blocks, %threads;
  mov.u64 %start, %globaltimer;
ROUND:
  mov.u32 %index, %thread;
WORD:
  setp.ge.u32 %end, %index, %count;
  @%end bra ROUND_END;
  mul.wide.u32 %offset, %index, 4;
  add.u64 %at, %words, %offset;
  st.volatile.global.u32 [%at], %value;
  add.u32 %index, %index, %step;
  bra WORD;
ROUND_END:
  membar.sys;
  st.volatile.global.u32 [%running], %value;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %again, %now, %limit;
  @%again bra ROUND;
  ret;
}
)";

// What a writer leaves behind: a forked child that sleeps until the test hangs
// up, or for some time after its parent's end. Both do without the driver.
void LeaveBehind(const std::string& what, platform::Channel& link) {
  if (what == "nothing") return;
  absl::StatusOr<platform::Process> parent =
      platform::Process::Open(platform::CurrentProcessId());
  RunApart([&] {
    if (what == "sleeper") {
      link.WaitForHangUp(absl::InfiniteFuture()).IgnoreError();
    } else {
      parent->WaitForExit(absl::InfiniteFuture()).IgnoreError();
      absl::SleepFor(Outliving());
    }
  });
}

// Fills `words`, says so, and goes on until it is killed.
int Fill(platform::Channel& link, CUdeviceptr words, const std::string& left) {
  const platform::Driver& driver = TestDriver();
  CUdeviceptr own = 0;
  EXPECT_EQ(driver->cuMemAlloc(&own, kVictimsOwn), CUDA_SUCCESS);
  for (bool told = false;; told = true) {
    EXPECT_EQ(driver->cuMemsetD32(words, kForeign, kBytes / 4), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
    if (told) continue;
    LeaveBehind(left, link);
    Tell(link, "runs", kText);
  }
}

// Has the kernel run on `words`, says so, and waits to be killed.
int Scribble(platform::Channel& link, CUdeviceptr words,
             const std::string& left) {
  const platform::Driver& driver = TestDriver();
  CUmodule module = nullptr;
  CUfunction scribble = nullptr;
  EXPECT_EQ(driver->cuModuleLoadData(&module, kScribble), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuModuleGetFunction(&scribble, module, "scribble"),
            CUDA_SUCCESS);
  CUdeviceptr own = 0;
  EXPECT_EQ(driver->cuMemAlloc(&own, kVictimsOwn), CUDA_SUCCESS);
  void* flag = nullptr;
  EXPECT_EQ(driver->cuMemHostAlloc(&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP),
            CUDA_SUCCESS);
  std::atomic_ref<unsigned> running(*static_cast<unsigned*>(flag));
  running = 0;
  // With unified addressing the flag has one address for everybody.
  CUdeviceptr flag_there = reinterpret_cast<CUdeviceptr>(flag);
  unsigned count = kBytes / 4;
  unsigned value = kForeign;
  std::uint64_t limit = kKernelNanoseconds;
  void* arguments[] = {&words, &count, &value, &flag_there, &limit};
  EXPECT_EQ(driver->cuLaunchKernel(scribble, 16, 1, 1, 256, 1, 1, 0, nullptr,
                                   arguments, nullptr),
            CUDA_SUCCESS);
  ExpectSoon([&] { return running == kForeign; });
  LeaveBehind(left, link);
  Tell(link, "runs", kText);
  Hear(link);
  return 1;
}

int WriteWithoutEnd(const Args& args, platform::Channel& link,
                    CUdeviceptr words) {
  return args[1] == "kernel" ? Scribble(link, words, args[2])
                             : Fill(link, words, args[2]);
}

// args: where to dial, how to write ("kernel" or "fill"), and what to leave
// behind. Subscribes to a
// pool and imports a block, which it is told of, to write to it until it is
// killed.
int PoolWriter(const Args& args) {
  const Here here;
  platform::Channel link = Dial(args[0]);
  const std::string text = Hear(link);
  const PoolTicket ticket = Must(DecodePoolTicket(FromHex(Hear(link))));
  const std::unique_ptr<ImportedPool> pool = Must(ImportedPool::Subscribe(
      TestDriver(), text, {.access = Access::kReadWrite}, Late()));
  const ImportedBlock block = Must(pool->Import(ticket, Late()));
  return WriteWithoutEnd(args, link, block.address());
}
const bool kPoolWriter = RegisterChild("pool-writer", &PoolWriter);

// The same with memory that it is sent.
int RawWriter(const Args& args) {
  const Here here;
  platform::Channel link = Dial(args[0]);
  const ImportedAllocation memory = Must(ReceiveAllocation(
      link, TestDriver(), {.access = Access::kReadWrite}, Late()));
  return WriteWithoutEnd(args, link, memory.address());
}
const bool kRawWriter = RegisterChild("raw-writer", &RawWriter);

// Of `times`, the given percentile.
absl::Duration Percentile(std::vector<absl::Duration> times, int percent) {
  if (times.empty()) return absl::ZeroDuration();
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) * static_cast<std::size_t>(percent) / 100];
}

void PrintTimes(const char* what, const std::vector<absl::Duration>& times) {
  std::printf("%s: p50 %s, p99 %s, of %zu\n", what,
              absl::FormatDuration(Percentile(times, 50)).c_str(),
              absl::FormatDuration(Percentile(times, 99)).c_str(),
              times.size());
}

class KilledWhileItWrites : public IpcTest,
                            public ::testing::WithParamInterface<const char*> {
 protected:
  static std::uint64_t Times() { return HowMany("VMMSHARE_KERNEL_KILLS", 5); }

  void SetUp() override {
    // Measured on an H200: the others' next call answers ILLEGAL_ADDRESS.
    if (UnderMps()) {
      GTEST_SKIP() << "under MPS a client that is killed in a kernel ends all "
                      "others, this process too";
    }
  }

  static std::string How() { return GetParam(); }
  static bool CannotRun() { return How() == "kernel" && !KernelsRun(); }
  Child StartWriter(const std::string& name,
                    const std::string& left = "nothing") {
    return Child::Start(name, {address(), How(), left});
  }
  // Kills some writers at once, each of which has a block and leaves `left`
  // behind; answers how many blocks met foreign writes once they were handed
  // out. Unless nothing was left, none may be handed out at first.
  std::uint64_t KillSome(std::uint64_t count, const std::string& left);
  void KillAll(const std::string& left);

  // Whether anybody but us writes to `at` within kLookFor.
  bool MeetsForeignWrites(CUdeviceptr at) {
    EXPECT_EQ(driver()->cuMemsetD32(at, kOurs, kBytes / 4), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
    const std::vector<unsigned> expected(kBytes / 4, kOurs);
    std::vector<unsigned> words(kBytes / 4);
    const absl::Time until = absl::Now() + kLookFor;
    do {
      EXPECT_EQ(driver()->cuMemcpyDtoH(words.data(), at, kBytes), CUDA_SUCCESS);
      if (words != expected) return true;
    } while (absl::Now() < until);
    return false;
  }
  std::uint64_t FreeBytes() {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
};

TEST_P(KilledWhileItWrites, ItsBlockIsNotWrittenToOnceItIsHandedOutAgain) {
  if (CannotRun()) GTEST_SKIP() << "this driver runs no kernels";
  // One block fills the pool.
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.first_segment_size = kBytes,
                                 .max_segment_size = 2 * kBytes,
                                 .cap = kBytes}));
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
  const Share publication = Must(endpoint->Serve(*pool));
  std::vector<absl::Duration> back;
  std::uint64_t foreign = 0;
  CUdeviceptr block = Must(pool->Allocate(kBytes, nullptr));
  for (std::uint64_t i = 0; i < Times(); ++i) {
    SCOPED_TRACE(i);
    Child child = StartWriter("pool-writer");
    platform::Channel link = Accept();
    Tell(link, publication.ticket(), kText);
    Tell(link, ToHex(EncodePoolTicket(Must(pool->Export(block)))), kText);
    ASSERT_EQ(Hear(link), "runs");
    Must(pool->Free(block, nullptr));
    EXPECT_TRUE(
        absl::IsResourceExhausted(pool->Allocate(kBytes, nullptr).status()))
        << "a living process has it";
    const absl::Time killed = absl::Now();
    child.Kill();
    absl::StatusOr<CUdeviceptr> again = absl::UnknownError("not tried");
    do {
      again = pool->Allocate(kBytes, nullptr);
    } while (!again.ok() && absl::Now() < killed + absl::Seconds(10));
    back.push_back(absl::Now() - killed);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, block) << "there is no other";
    if (MeetsForeignWrites(*again)) ++foreign;
    EXPECT_EQ(child.Wait(), Child::kKilled);
  }
  Must(pool->Free(block, nullptr));
  ExpectSoon([&] { return pool->statistics().peers == 0; });
  EXPECT_EQ(foreign, 0u);
  std::printf("killed in a %s: %llu, foreign writes %llu\n", GetParam(),
              static_cast<unsigned long long>(Times()),
              static_cast<unsigned long long>(foreign));
  PrintTimes("until the pool hands its block out", back);
}

std::uint64_t KilledWhileItWrites::KillSome(std::uint64_t count,
                                            const std::string& left) {
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.first_segment_size = kBytes,
                                 .max_segment_size = kBytes,
                                 .cap = count * kBytes}));
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
  const Share publication = Must(endpoint->Serve(*pool));
  std::vector<Child> children;
  for (std::uint64_t i = 0; i < count; ++i) {
    children.push_back(StartWriter("pool-writer", left));
  }
  std::vector<platform::Channel> links;
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    links.push_back(Accept());
    blocks.push_back(Must(pool->Allocate(kBytes, nullptr)));
    Tell(links[i], publication.ticket(), kText);
    Tell(links[i], ToHex(EncodePoolTicket(Must(pool->Export(blocks[i])))),
         kText);
  }
  for (platform::Channel& link : links) EXPECT_EQ(Hear(link), "runs");
  for (CUdeviceptr block : blocks) Must(pool->Free(block, nullptr));
  for (Child& child : children) child.Kill();
  for (Child& child : children) EXPECT_EQ(child.Wait(), Child::kKilled);
  const absl::Time ended = absl::Now();
  if (left != "nothing") {
    // While what was left lives, kernels run on, and nothing is handed out.
    if (How() == "kernel") {
      EXPECT_TRUE(MeetsForeignWrites(blocks[0])) << "there is nothing to see";
    }
    while (absl::Now() < ended + Outliving() / 2) {
      EXPECT_FALSE(pool->Allocate(kBytes, nullptr).ok());
    }
    EXPECT_EQ(pool->statistics().quarantined, count * kBytes);
  }
  if (left == "sleeper") links.clear();
  std::uint64_t foreign = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    absl::StatusOr<CUdeviceptr> again = absl::UnknownError("not tried");
    ExpectSoon([&] {
      again = pool->Allocate(kBytes, nullptr);
      return again.ok();
    });
    if (again.ok() && MeetsForeignWrites(*again)) ++foreign;
  }
  return foreign;
}

void KilledWhileItWrites::KillAll(const std::string& left) {
  if (CannotRun()) GTEST_SKIP() << "this driver runs no kernels";
  std::uint64_t foreign = 0;
  for (std::uint64_t done = 0; done < Times();) {
    const std::uint64_t count = std::min(kAtOnce, Times() - done);
    foreign += KillSome(count, left);
    done += count;
  }
  EXPECT_EQ(foreign, 0u);
  std::printf("killed in a %s, left behind %s: %llu, foreign writes %llu\n",
              GetParam(), left.c_str(),
              static_cast<unsigned long long>(Times()),
              static_cast<unsigned long long>(foreign));
}

TEST_P(KilledWhileItWrites, ManyAtOnceThatLeaveNothingBehind) {
  KillAll("nothing");
}

TEST_P(KilledWhileItWrites, ManyAtOnceWhoseForkedChildrenSleep) {
  if (!MayFork()) GTEST_SKIP() << "this system has no fork";
  KillAll("sleeper");
}

TEST_P(KilledWhileItWrites, ManyAtOnceWhoseForkedChildrenEndLater) {
  if (!MayFork()) GTEST_SKIP() << "this system has no fork";
  KillAll("survivor");
}

// Not the library's doing: what there is to see, and how long the driver takes.
TEST_P(KilledWhileItWrites, MemoryThatIsUsedAgainAtOnceMayBeWrittenTo) {
  if (CannotRun()) GTEST_SKIP() << "this driver runs no kernels";
  const Allocation memory = Make(kBytes);
  std::vector<absl::Duration> ended, freed;
  std::uint64_t alive = 0, at_once = 0, after_hang_up = 0, tries = 0;
  for (std::uint64_t i = 0; i < 3 * Times(); ++i) {
    SCOPED_TRACE(i);
    Child child = StartWriter("raw-writer");
    platform::Channel link = Accept();
    Must(SendAllocation(link, memory.shareable(), Late()));
    ASSERT_EQ(Hear(link), "runs");
    const platform::Process process = Must(link.OpenPeer());
    if (MeetsForeignWrites(memory.address())) ++alive;
    const std::uint64_t with_victim = FreeBytes();
    const absl::Time killed = absl::Now();
    child.Kill();
    // By turns: looking at memory holds up the driver, and so does asking it.
    if (i % 3 != 2) {
      tries += i % 3 == 0 ? 1 : 0;
      if (i % 3 == 1) Must(link.WaitForHangUp(Late()));
      if (MeetsForeignWrites(memory.address())) {
        ++(i % 3 == 0 ? at_once : after_hang_up);
      }
    } else {
      std::thread waiter([&] {
        EXPECT_TRUE(process.WaitForExit(Late()).ok());
        ended.push_back(absl::Now() - killed);
      });
      while (FreeBytes() < with_victim + kVictimsOwn &&
             absl::Now() < killed + absl::Seconds(10)) {
      }
      freed.push_back(absl::Now() - killed);
      waiter.join();
    }
    EXPECT_EQ(child.Wait(), Child::kKilled);
  }
  std::printf(
      "used again without waiting for the end of the process, a %s: of %llu "
      "at once %llu met foreign writes, of %llu at the hang-up %llu\n",
      GetParam(), static_cast<unsigned long long>(tries),
      static_cast<unsigned long long>(at_once),
      static_cast<unsigned long long>(tries),
      static_cast<unsigned long long>(after_hang_up));
  EXPECT_GT(alive, 0u) << "foreign writes cannot be seen at all";
  PrintTimes("until the process is seen to have ended", ended);
  PrintTimes("until the driver counts its memory as free", freed);
}

INSTANTIATE_TEST_SUITE_P(By, KilledWhileItWrites,
                         ::testing::Values("kernel", "fill"),
                         [](const auto& how) {
                           return std::string(how.param) == "kernel" ? "Kernel"
                                                                     : "Fill";
                         });

}  // namespace
}  // namespace vmm::testing
