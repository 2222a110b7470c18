#include "platform/os/map_error_posix.h"

#include <sys/resource.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

absl::Status MapError(int code, absl::string_view call) {
  if (code != EAGAIN) return OsError(code, call);
  return absl::ResourceExhaustedError(absl::StrCat(
      call, " failed with EAGAIN (", code,
      ": too much memory would be locked). ", LockedMemoryLimit()));
}

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "";
  return absl::StrCat(
      "This process locks all memory that it maps (mlockall), and may lock ",
      limit.rlim_cur, " bytes (ulimit -l); raise that, or do not lock");
}

}  // namespace vmm::platform
