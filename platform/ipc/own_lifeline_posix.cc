#include "platform/ipc/own_lifeline_posix.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/file_size_posix.h"
#include "platform/os/map_error_posix.h"
#include "platform/os/memfd_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

// In the page. Peers read it and trust it as far as they trust the process.
struct Counts {
  std::atomic<std::uint64_t> forks;
  std::atomic<std::uint64_t> unseen;  // Not 0: there were forks without it.
};
// Pages mapped at once: this process's own and those that it inherited. A page that
// a peer makes useless for others stays mapped until the process ends, and Linux
// gives a process 65,530 mappings in all. An owner may seal each page and say that
// it is busy; a connect() of two minutes then comes again five to ten times a
// second. It must not use up all pages: no other owner could be asked after that.
constexpr std::size_t kMostPages = 1024;
static_assert(sizeof(Counts) == 16 &&
              std::atomic<std::uint64_t>::is_always_lock_free);

absl::StatusOr<OsHandle> MakePage() {
  ASSIGN_OR_RETURN(OsHandle page, MakeMemfd("vmmshare-lifeline"));
  if (SetFileSize(Fd(page), kLifelineBytes) != 0) {
    return LastError().Of("ftruncate(vmmshare-lifeline)");
  }
  return page;
}

// This process's lifeline. Its mutex is held while the process forks.
class Own {
 public:
  static Own& Get() {
    static Own* const own = new Own;  // Never destroyed: forks come late, too.
    return *own;
  }

  absl::Status Make() {
    const MutexLock lock(mutex_);
    return Ensure();
  }

  // A duplicate of it: handle_ may be another one once the mutex is let go, and
  // its number another file's.
  absl::StatusOr<OsHandle> Take() {
    const MutexLock lock(mutex_);
    RETURN_IF_ERROR(Ensure());
    return Duplicate(handle_);
  }

  bool AreSealed() {
    const MutexLock lock(mutex_);
    return are_sealed_;
  }

  void BeforeFork() ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_) {
    mutex_.Lock();
    Ensure().IgnoreError();  // Then the child has the one before, or none.
    if (counts_ != nullptr && process_ == CurrentProcessId()) {
      counts_->forks.fetch_add(1);
    } else {
      unseen_ = true;
    }
  }
  void AfterForkInParent() ABSL_UNLOCK_FUNCTION(mutex_) { mutex_.Unlock(); }
  // The parent's stays mapped: that is what it is for.
  void AfterForkInChild() ABSL_UNLOCK_FUNCTION(mutex_) {
    const absl::StatusOr<bool> is_ours = IsOurs();
    if (is_ours.ok() && *is_ours) handle_.Reset();
    static_cast<void>(std::move(handle_).Relinquish());
    counts_ = nullptr;
    unseen_ = false;
    process_ = CurrentProcessId();
    inherited_ = known_;
    mutex_.Unlock();
  }

  void LetGoOfInherited() {
    // Before the mutex: who asks first has the C library note a handler of forks,
    // for which it may wait for one that waits for the mutex.
    const std::uint64_t self = ProcessMark();
    const MutexLock lock(mutex_);
    // One of another driver, or of another copy of it, says nothing.
    if (driver_process_ == 0) driver_process_ = self;
    if (driver_process_ != self) return;
    for (std::size_t i = 0; i < inherited_; ++i) {
      ::munmap(pages_[i], kLifelineBytes);
    }
    std::move(pages_.begin() + inherited_, pages_.begin() + known_,
              pages_.begin());
    known_ -= inherited_;
    inherited_ = 0;
  }

 private:
  Own() = default;

  // Whether handle_ is still what it was: programs close all descriptors that
  // they do not know, and the number may be another file's since.
  absl::StatusOr<bool> IsOurs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!handle_.has_value()) return false;
    struct stat info {};
    if (::fstat(Fd(handle_), &info) == 0) {
      return info.st_ino == inode_ && info.st_dev == device_;
    }
    if (errno == EBADF) return false;
    return LastError().Of("fstat(vmmshare-lifeline)");
  }

  // Whoever it was sent to may have forbidden all further seals: nobody would
  // take it any more.
  bool CanBeSealed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int seals = ::fcntl(Fd(handle_), F_GET_SEALS);
    return seals < 0 || (seals & F_SEAL_SEAL) == 0;
  }

  absl::Status Ensure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool has_descriptor = false;
    // A clone() without fork's handlers finds its parent's.
    if (process_ == CurrentProcessId()) {
      ASSIGN_OR_RETURN(has_descriptor, IsOurs());
      if (has_descriptor && CanBeSealed()) return absl::OkStatus();
      // What was forked since has the one before.
      unseen_ |= counts_ != nullptr && counts_->forks.load() != 0;
    } else {
      process_ = CurrentProcessId();
      counts_ = nullptr;
      unseen_ = false;
      known_ = inherited_ = 0;  // They may be those of one that goes on here.
    }
    // What is mapped and not in the list could not be let go of in a fork.
    if (known_ == pages_.size()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "this process maps ", known_, " lifelines, and makes no more: each ",
          "was made useless for others, by a peer that forbade further seals ",
          "on it (F_SEAL_SEAL), or by the program, which closed its ",
          "descriptor; ", inherited_, " are of processes that it was forked ",
          "from. They stay until it ends: start it anew, without the owner ",
          "that does that"));
    }
    ASSIGN_OR_RETURN(OsHandle page, MakePage());
    struct stat info {};
    if (::fstat(Fd(page), &info) != 0) {
      return LastError().Of("fstat(vmmshare-lifeline)");
    }
    void* const data = ::mmap(nullptr, kLifelineBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED, Fd(page), 0);
    if (data == MAP_FAILED)
      return MapError(LastError(), "mmap(vmmshare-lifeline)");
    // Kernels without that seal (before 5.1) have no pidfds either.
    const bool is_sealed = ::fcntl(Fd(page), F_ADD_SEALS, kLifelineSeals) == 0;
    if (!is_sealed && (errno != EINVAL || are_sealed_)) {
      const int error = errno;
      ::munmap(data, kLifelineBytes);
      return OsError(error, "fcntl(vmmshare-lifeline, F_ADD_SEALS)");
    }
    are_sealed_ = is_sealed;
    pages_[known_++] = data;
    // Forks are counted in the new one from now on, and map the one before as
    // well. Whoever has that waits as after a fork.
    if (counts_ != nullptr) counts_->forks.fetch_add(1);
    counts_ = new (data) Counts{};
    counts_->unseen.store(unseen_ ? 1 : 0);
    inode_ = info.st_ino;
    device_ = info.st_dev;
    // What has the number of one that was closed is not ours to close.
    if (has_descriptor) handle_.Reset();
    static_cast<void>(std::move(handle_).Relinquish());
    handle_ = std::move(page);
    return absl::OkStatus();
  }

  Mutex mutex_;
  OsHandle handle_ ABSL_GUARDED_BY(mutex_);
  Counts* counts_ ABSL_GUARDED_BY(mutex_) = nullptr;
  ino_t inode_ ABSL_GUARDED_BY(mutex_) = 0;
  dev_t device_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t process_ ABSL_GUARDED_BY(mutex_) = CurrentProcessId();
  bool are_sealed_ ABSL_GUARDED_BY(mutex_) = false;
  bool unseen_ ABSL_GUARDED_BY(mutex_) = false;
  // The mark of the process in which a driver has answered first: of this one, of
  // one that it was forked from, or 0.
  std::uint64_t driver_process_ ABSL_GUARDED_BY(mutex_) = 0;
  // Pages that are mapped here, the inherited ones first.
  std::array<void*, kMostPages> pages_ ABSL_GUARDED_BY(mutex_) = {};
  std::size_t known_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t inherited_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Unchecked: what one of these locks another unlocks, in two processes.
void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { Own::Get().BeforeFork(); }
void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Own::Get().AfterForkInParent();
}
void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Own::Get().AfterForkInChild();
}

// When the library is loaded, so that no fork is missed that comes later.
[[maybe_unused]] const bool kIsWatched = [] {
  Check(::pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0,
        "pthread_atfork() has no memory to notice forks");
  // Where it cannot be had now it may be later.
  return Own::Get().Make().ok();
}();

}  // namespace

absl::StatusOr<OsHandle> TakeOwnLifeline() { return Own::Get().Take(); }

bool OwnLifelinesAreSealed() { return Own::Get().AreSealed(); }

void LetGoOfInheritedLifelines() { Own::Get().LetGoOfInherited(); }

}  // namespace vmm::platform
