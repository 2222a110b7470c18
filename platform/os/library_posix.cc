#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/library.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

std::string LoaderError() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "the loader gives no reason";
}

// Where the dynamic loader looks, as it read it when the program started: a
// later change of LD_LIBRARY_PATH is not what it uses, so getenv would mislead.
absl::StatusOr<std::vector<std::string>> SearchPath() {
  void* program = ::dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size;
  if (program == nullptr ||
      ::dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) {
    return absl::InternalError(
        absl::StrCat("dlinfo(RTLD_DI_SERINFOSIZE) failed: ", LoaderError()));
  }
  std::vector<std::max_align_t> buffer(
      size.dls_size / sizeof(std::max_align_t) + 1);
  auto* info = new (buffer.data()) Dl_serinfo(size);
  if (::dlinfo(program, RTLD_DI_SERINFO, info) != 0) {
    return absl::InternalError(
        absl::StrCat("dlinfo(RTLD_DI_SERINFO) failed: ", LoaderError()));
  }
  std::vector<std::string> directories;
  directories.reserve(info->dls_cnt);
  for (unsigned i = 0; i < info->dls_cnt; ++i) {
    directories.emplace_back(info->dls_serpath[i].dls_name);
  }
  return directories;
}

// What in the working directory the loader would take for `name`, or "". In
// each directory it also tries these folders, for newer processors.
std::string PlantedFile(const std::string& directory, const std::string& name) {
  for (const char* entry :
       {name.c_str(), "glibc-hwcaps", "tls", "haswell", "avx512_1", "x86_64"}) {
    std::string path =
        absl::StrCat(directory.empty() ? "." : directory, "/", entry);
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return "";
}

absl::Status CheckSearchPath(const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<std::string> directories, SearchPath());
  for (const std::string& directory : directories) {
    if (!directory.empty() && directory[0] == '/') continue;
    const std::string planted = PlantedFile(directory, name);
    if (planted.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "not loading ", name, ": the library search path has the directory \"",
        directory, "\" that depends on the working directory, and ", planted,
        " exists there. Remove empty and relative parts from "
        "LD_LIBRARY_PATH."));
  }
  return absl::OkStatus();
}

absl::Status CheckFile(const std::string& path) {
  ASSIGN_OR_RETURN(const OsHandle file, OpenForReading(path));
  struct stat about;
  if (::fstat(Fd(file), &about) != 0) {
    return LastError().Of(absl::StrCat("fstat(", path, ")"));
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("not loading ", path, ": it is not a regular file"));
  }
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "not loading %s: it belongs to user %d, and a library must belong to "
        "root or to this process's user, %d",
        path, about.st_uid, ::geteuid()));
  }
  // Where every user has a group of his own, with his own number, compilers
  // write files that this group may write: nobody else is in it.
  const bool private_group = about.st_gid == about.st_uid;
  const mode_t writable_by_others =
      about.st_mode & (private_group ? S_IWOTH : S_IWOTH | S_IWGRP);
  if (writable_by_others != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "not loading %s: its mode is %04o, so that others may write to it. "
        "Run chmod go-w on it.",
        path, about.st_mode & 07777));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Library> Library::OpenSystem(const std::string& name) {
  IsForkedChild();  // A use of vmmshare: records this process.
  if (name.empty() || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name,
                     "\" is not a bare library name such as libcuda.so.1; "
                     "a path goes to OpenPath()"));
  }
  RETURN_IF_ERROR(CheckSearchPath(name));
  // Now, so that a library that lacks something fails here and not when used;
  // local, so that its symbols cannot take the place of the program's.
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("dlopen(", name, ") failed: ", LoaderError(), "."));
  }
  link_map* map = nullptr;
  const bool known = ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0;
  return Library(handle, known ? map->l_name : name);
}

absl::StatusOr<Library> Library::OpenPath(const std::string& path) {
  IsForkedChild();
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path,
                     "\" is not an absolute path; a relative one would depend "
                     "on the working directory"));
  }
  RETURN_IF_ERROR(CheckFile(path));
  // Not through the checked descriptor (/proc/self/fd/N): debuggers and
  // $ORIGIN need the real name.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "dlopen(", path, ") failed: ", LoaderError(),
        ". Name a shared library that this machine can load (ldd says what it "
        "lacks)."));
  }
  return Library(handle, path);
}

void* Library::Find(const char* symbol) const {
  return ::dlsym(handle_, symbol);
}

}  // namespace vmm::platform
