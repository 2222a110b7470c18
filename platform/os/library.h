// Opens dynamic libraries by a system name or an absolute path.
//
// A driver runs with all rights of the process, so a planted one must not be
// loadable: no look-up in the working directory, none beside the program.
#ifndef VMMSHARE_PLATFORM_OS_LIBRARY_H_
#define VMMSHARE_PLATFORM_OS_LIBRARY_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace vmm::platform {

// A loaded library. Never unloaded: CUDA drivers do not support it.
// A small value; thread-safe.
class Library {
 public:
  // The system's library `name` ("libcuda.so.1", "nvcuda.dll"), found where
  // the system looks for libraries, but never through the working directory.
  // INVALID_ARGUMENT when `name` has a directory part; NOT_FOUND with the
  // loader's own words when there is none; FAILED_PRECONDITION when the search
  // path (LD_LIBRARY_PATH) would find one through a relative directory.
  static absl::StatusOr<Library> OpenSystem(const std::string& name);

  // The library at the absolute `path`: a regular file that belongs to root or
  // to this user and that others may not write (FAILED_PRECONDITION).
  // INVALID_ARGUMENT for a relative path, NOT_FOUND for a missing file.
  // On Windows the path is UTF-8 (INVALID_ARGUMENT otherwise), and what the library
  // needs itself comes from System32 alone.
  static absl::StatusOr<Library> OpenPath(const std::string& path);

  // The address of `symbol`, or null.
  void* Find(const char* symbol) const;
  // Find() as a function that needs this object no longer.
  std::function<void*(const char* symbol)> AsLookup() const {
    return
        [library = *this](const char* symbol) { return library.Find(symbol); };
  }

  // Where the library was loaded from.
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path)
      : handle_(handle), path_(std::move(path)) {}

  void* handle_;
  std::string path_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_LIBRARY_H_
