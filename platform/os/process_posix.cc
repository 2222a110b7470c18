#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// PID_FS_MAGIC, which <linux/magic.h> has in newer releases.
constexpr decltype(statfs::f_type) kPidfs = 0x50494446;

}  // namespace

UserId CurrentUser() { return UserId(absl::StrCat(::geteuid())); }

std::int64_t CurrentProcessId() { return ::getpid(); }

bool IsForkedChild() {
  // Recorded at first use and not when the program starts: a launcher that
  // forks its workers before it touches vmmshare has shared nothing with them.
  static std::atomic<std::uint64_t> first_user{0};
  const std::uint64_t self = ProcessMark();
  std::uint64_t recorded = 0;
  return !first_user.compare_exchange_strong(recorded, self) &&
         recorded != self;
}

std::uint64_t ForksSoFar() {
  static std::atomic<std::uint64_t> forks{0};
  static const bool counts = ::pthread_atfork(nullptr, nullptr, [] {
                               forks.fetch_add(1, std::memory_order_relaxed);
                             }) == 0;
  Check(counts, "pthread_atfork() has no memory to count forks");
  return forks.load(std::memory_order_relaxed);
}

std::uint64_t ForkEpoch() {
  static std::atomic<std::uint64_t> epoch{0};
  static const bool counts =
      ::pthread_atfork([] { epoch.fetch_add(1, std::memory_order_relaxed); },
                       nullptr, nullptr) == 0;
  Check(counts, "pthread_atfork() has no memory to count forks");
  return epoch.load(std::memory_order_relaxed);
}

absl::Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return LastError().Of("getrlimit(RLIMIT_NOFILE)");
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return LastError().Of(
        absl::StrCat("setrlimit(RLIMIT_NOFILE, ", limit.rlim_max, ")"));
  }
  return absl::OkStatus();
}

const char* SystemDriverName() { return "libcuda.so.1"; }

const char* SystemNvmlName() { return "libnvidia-ml.so.1"; }

absl::StatusOr<Process> Process::Open(std::int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process id ", pid, " is none; ids start at 1"));
  }
  // By number: the C library has a wrapper only from glibc 2.36 on. The
  // descriptor is close-on-exec without a flag.
  OsHandle process = AdoptDescriptor(
      static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U)));
  if (!process.has_value()) {
    const LastError error;
    return error.Of(absl::StrCat("pidfd_open(", pid, ")"),
                    error.code() == ENOSYS ? "Linux has it since 5.3." : "");
  }
  return FromHandle(std::move(process), pid);
}

std::uint64_t Process::Identity() const {
  Check(handle_ != nullptr, "this Process was moved from");
  // Elsewhere than in a file system of their own all pidfds are one file.
  struct statfs system {};
  while (::fstatfs(Fd(*handle_), &system) != 0) {
    if (errno != EINTR) return 0;
  }
  struct stat about {};
  if (system.f_type != kPidfs || ::fstat(Fd(*handle_), &about) != 0) return 0;
  return about.st_ino;
}

absl::Status Process::WaitForExit(Deadline deadline) const {
  Check(handle_ != nullptr, "this Process was moved from");
  // A pidfd becomes readable when the process ends, reaped or not.
  return WaitForEvents(*handle_, POLLIN, deadline, {},
                       absl::StrCat("exit of process ", pid_))
      .status();
}

}  // namespace vmm::platform
