// Small files of /proc and the like, read whole; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_TEXT_FILE_POSIX_H_
#define VMMSHARE_PLATFORM_OS_TEXT_FILE_POSIX_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vmm::platform {

// What is in the file at `path`, of which at most 256 KiB are read. NOT_FOUND
// and others as the system answers.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// The names in the folder `path`, without "." and "..". NOT_FOUND and others as
// the system answers.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_TEXT_FILE_POSIX_H_
