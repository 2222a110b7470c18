// Sharing a block out of a warm pool calls no system, on neither side: the
// kernel ends the process at the first system call that is not allowed.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/check.h"
#include "platform/os/zeroed_pages.h"
#include "tests/ipc/pool_both_sides.h"
#include "tests/support/emulator.h"
#include "tests/support/must.h"
#include "vmm/pool/internal/share_layout.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

constexpr int kNotShared = 90;  // Exit status: wrong, but no call was made.

// Ends the process at this thread's next system call, but for the end of the
// process and a last line. Other threads go on.
void ForbidSystemCalls() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_write, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog filter = {sizeof program / sizeof program[0], program};
  platform::Check(
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
          ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0,
      "this kernel filters no system calls");
}

// args: the directory, and what is done wrong on purpose, if anything.
int ShareWithoutSystemCalls(const Args& args) {
  const Here here;
  BothSides sides(TestDriver(), args[0]);
  // What the very first of each costs: the thread's own cache, the first page
  // of tables, the heap's.
  platform::Check(sides.ShareAll() && sides.FreeAll() && sides.TakeAll(),
                  "cannot share with system calls");
  ForbidSystemCalls();
  bool done = sides.ShareAll();
  if (args[1] == "getppid") static_cast<void>(::syscall(SYS_getppid));
  if (args[1] == "grow") {
    done = sides.pool->Reserve(std::uint64_t{1} << 30, nullptr).ok() && done;
  }
  done = sides.FreeAll() && sides.TakeAll() && sides.ShareAll() && done;
  ::_exit(done ? 0 : kNotShared);
}
const bool kShareWithoutSystemCalls =
    RegisterChild("share-without-system-calls", &ShareWithoutSystemCalls);

class PoolSystemCalls : public PoolIpcTest {
 protected:
  void SetUp() override {
    if (!OnHostMemoryDriver()) GTEST_SKIP() << "a matter of this code alone";
    if (IsEmulated()) GTEST_SKIP() << "qemu-user: filters no system calls";
    PoolIpcTest::SetUp();
  }
  int RunChild(const std::string& mistake) {
    return Child::Start("share-without-system-calls",
                        {listener_directory(), mistake})
        .Wait();
  }
  static constexpr int kEndedByTheFilter = 128 + SIGSYS;
};

TEST_F(PoolSystemCalls, SharingOutOfAWarmPoolCallsNoKernel) {
  EXPECT_EQ(RunChild("none"), 0);
}

TEST_F(PoolSystemCalls, OneCallIsSeen) {
  EXPECT_EQ(RunChild("getppid"), kEndedByTheFilter);
  EXPECT_EQ(RunChild("grow"), kEndedByTheFilter);
}

// Of this process's mappings of control memory that are `kib` large, the most
// that one has in memory, in KiB.
std::size_t ResidentOf(std::size_t kib) {
  std::ifstream maps("/proc/self/smaps");
  std::size_t most = 0, size = 0, value = 0;
  bool is_control = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) {
      is_control = line.find("memfd:vmmshare-control") != std::string::npos;
    } else if (std::sscanf(line.c_str(), "Size: %zu", &value) == 1) {
      size = value;
    } else if (std::sscanf(line.c_str(), "Rss: %zu", &value) == 1) {
      if (is_control && size == kib) most = std::max(most, value);
      is_control = false;
    }
  }
  return most;
}

// By threads that attend, before the first share: the owner's records, and the
// words of the peer.
TEST_F(PoolSystemCalls, APageOfTheTablesIsThereBeforeAShareWritesToIt) {
  const platform::ZeroedPages probe = Must(platform::MapZeroedPages(4096));
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE
  if (::madvise(probe.get().data(), 4096, kPopulateWrite) != 0) {
    GTEST_SKIP() << "this kernel makes no pages ahead";
  }
  const Share share = Serve();
  const std::unique_ptr<ImportedPool> imported =
      Must(ImportedPool::Subscribe(driver(), share.ticket(), {}, Late()));
  using pool::kSlotsAhead;
  ExpectSoon([] {
    return ResidentOf(pool::kShareTableBytes >> 10) >=
               (kSlotsAhead * sizeof(pool::ShareRecord) >> 10) &&
           ResidentOf(pool::kHoldTableBytes >> 10) >=
               (kSlotsAhead * sizeof(pool::Hold) >> 10);
  });
}

}  // namespace
}  // namespace vmm::testing
