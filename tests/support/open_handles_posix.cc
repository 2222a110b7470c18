#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/process.h"
#include "tests/support/open_handles.h"

namespace vmm::testing {

std::map<int, std::string> OpenHandles() {
  // What is being closed elsewhere is as good as closed, unless that blocks.
  const absl::Time enough = absl::Now() + absl::Seconds(1);
  const auto all_are_closed = [] {
    using platform::Connections;
    using platform::NotYetClosed;
    return NotYetClosed(platform::CurrentUser()) == 0 &&
           NotYetClosed(Connections::kOfPeers) == 0 &&
           NotYetClosed(Connections::kOfStrangers) == 0;
  };
  while (!all_are_closed() && absl::Now() < enough) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  DIR* directory = ::opendir("/proc/self/fd");
  platform::Check(directory != nullptr, "cannot read /proc/self/fd");
  std::map<int, std::string> handles;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = std::atoi(entry->d_name);
    if (fd == ::dirfd(directory)) continue;
    char target[4096];
    const ssize_t length =
        ::readlinkat(::dirfd(directory), entry->d_name, target, sizeof(target));
    handles[fd] =
        length < 0 ? "?" : std::string(target, static_cast<size_t>(length));
  }
  ::closedir(directory);
  return handles;
}

std::size_t OpenHandleCount() { return OpenHandles().size(); }

ExpectNoNewHandles::ExpectNoNewHandles() : before_(OpenHandles()) {}

ExpectNoNewHandles::~ExpectNoNewHandles() {
  // What another thread has open for a moment, as one that looks into /proc, it
  // closes by itself; what is left open stays so.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  std::map<int, std::string> after = OpenHandles();
  while (after != before_ && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    after = OpenHandles();
  }
  for (const auto& [fd, target] : after) {
    const auto before = before_.find(fd);
    if (before == before_.end()) {
      ADD_FAILURE() << "descriptor " << fd << " is left open: " << target;
    } else if (before->second != target) {
      ADD_FAILURE() << "descriptor " << fd << " was " << before->second
                    << " and is now " << target;
    }
  }
  for (const auto& [fd, target] : before_) {
    if (!after.contains(fd)) {
      ADD_FAILURE() << "descriptor " << fd << " was closed: " << target;
    }
  }
}

}  // namespace vmm::testing
