#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/file_reader.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

absl::StatusOr<FileReader> FileReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(OsHandle file, OpenForReading(path));
  return FileReader(std::move(file), path);
}

absl::StatusOr<std::uint64_t> FileReader::Size() const {
  struct stat status {};
  if (::fstat(Fd(file_), &status) != 0) {
    return LastError().Of(absl::StrCat("fstat(", path_, ")"));
  }
  return S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size)
                                 : 0;
}

absl::StatusOr<std::size_t> FileReader::Read(
    std::uint64_t offset, absl::Span<std::uint8_t> bytes) const {
  // No file reaches so far.
  if (offset > std::numeric_limits<off_t>::max() - bytes.size()) return 0;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pread(Fd(file_), bytes.data() + done, bytes.size() - done,
                static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return LastError().Of(absl::StrCat("pread(", path_, ", ",
                                         bytes.size() - done, " bytes at ",
                                         offset + done, ")"));
    }
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

}  // namespace vmm::platform
