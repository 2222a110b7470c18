// FileReader: the bytes of a file, from any place of it.
#ifndef VMMSHARE_PLATFORM_OS_FILE_READER_H_
#define VMMSHARE_PLATFORM_OS_FILE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Move-only; reads may come from several threads.
class FileReader {
 public:
  // NOT_FOUND when there is none at `path` (UTF-8, of any length); others as the
  // system answers. (Windows: INVALID_ARGUMENT when it is a folder. Elsewhere that
  // is opened, has no bytes and cannot be read.)
  static absl::StatusOr<FileReader> Open(const std::string& path);

  // Bytes that it has now. 0 for what is no regular file.
  absl::StatusOr<std::uint64_t> Size() const;

  // Reads `bytes` from `offset` on. Returns how many there were: fewer only where
  // the file ends.
  absl::StatusOr<std::size_t> Read(std::uint64_t offset,
                                   absl::Span<std::uint8_t> bytes) const;

 private:
  FileReader(OsHandle file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  OsHandle file_;
  std::string path_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_FILE_READER_H_
