#include "platform/os/map_error_posix.h"

#include <sys/resource.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace vmm::platform {

absl::Status MapError(const LastError& error, absl::string_view call) {
  if (error.code() != EAGAIN) return error.Of(call);
  return absl::ResourceExhaustedError(absl::StrCat(
      call, " failed with EAGAIN (", error.code(),
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
