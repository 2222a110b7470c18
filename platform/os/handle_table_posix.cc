#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "platform/os/handle_table.h"

namespace vmm::platform {
namespace {

constexpr rlim_t kRoom = 4096;

}  // namespace

void GrowHandleTable() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0) return;
  const auto last = static_cast<int>(std::min(limit.rlim_cur, kRoom) - 1);
  // The directory is there in every process; standard input may not be. What
  // fails here is only slower later.
  const int some = ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (some < 0) return;
  const int highest = ::fcntl(some, F_DUPFD_CLOEXEC, last);
  if (highest >= 0) ::close(highest);
  ::close(some);
}

}  // namespace vmm::platform
