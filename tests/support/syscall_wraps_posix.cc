// The functions on files, memory, processes and threads that the linker
// puts in place of the system's: ld --wrap=NAME sends calls of NAME to
// __wrap_NAME, and calls of __real_NAME to NAME.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <string_view>
#include <system_error>

#include "tests/support/blocking_file_posix.h"
#include "tests/support/syscall_table_posix.h"

// The linker's names; they cannot be others.
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

extern "C" {

// So that --undefined can pull this file out of its archive.
extern const int vmmshare_file_wraps_linked;
const int vmmshare_file_wraps_linked = 1;

int __real_stat(const char* path, struct stat* result);
int __real_lstat(const char* path, struct stat* result);
int __real_fstat(int fd, struct stat* result);
int __real_statx(int directory, const char* path, int flags, unsigned mask,
                 struct statx* result);
int __real_fstatat(int directory, const char* path, struct stat* result,
                   int flags);
int __real_fstatfs(int fd, struct statfs* result);
int __real_statfs(const char* path, struct statfs* result);
DIR* __real_opendir(const char* path);
DIR* __real_fdopendir(int fd);
dirent* __real_readdir(DIR* directory);
int __real_closedir(DIR* directory);
int __real_gethostname(char* name, size_t size);
int __real_access(const char* path, int mode);
ssize_t __real_readlink(const char* path, char* text, size_t size);
ssize_t __real_readlinkat(int directory, const char* path, char* text,
                          size_t size);
char* __real_realpath(const char* path, char* result);
int __real_mkdir(const char* path, mode_t mode);
int __real_mkdirat(int directory, const char* path, mode_t mode);
int __real_chmod(const char* path, mode_t mode);
int __real_fchmod(int fd, mode_t mode);
int __real_fchmodat(int directory, const char* path, mode_t mode, int flags);
int __real_link(const char* path, const char* to);
int __real_linkat(int from, const char* path, int directory, const char* to,
                  int flags);
int __real_rename(const char* path, const char* to);
int __real_renameat(int from, const char* path, int directory, const char* to);
int __real_ftruncate(int fd, off_t size);
int __real_fsync(int fd);
int __real_flock(int fd, int operation);
int __real_unlink(const char* path);
int __real_unlinkat(int directory, const char* path, int flags);
int __real_rmdir(const char* path);
void* __real_mmap(void* at, size_t size, int protection, int flags, int fd,
                  off_t offset);
int __real_mprotect(void* at, size_t size, int protection);
int __real_munmap(void* at, size_t size);
int __real_waitid(idtype_t type, id_t id, siginfo_t* info, int options);
pid_t __real_waitpid(pid_t pid, int* status, int options);
int __real_kill(pid_t pid, int signal);
int __real_pidfd_open(pid_t pid, unsigned flags);
int __real_pidfd_send_signal(int fd, int signal, siginfo_t* info,
                             unsigned flags);
ssize_t __real_getrandom(void* data, size_t size, unsigned flags);
int __real_getentropy(void* data, size_t size);
int __real_getrlimit(decltype(RLIMIT_NOFILE) which, rlimit* limit);
int __real_setrlimit(decltype(RLIMIT_NOFILE) which, const rlimit* limit);
int __real_getpwnam_r(const char* name, passwd* entry, char* memory,
                      size_t size, passwd** found);
int __real_dlinfo(void* library, int request, void* result);
int __real_open(const char* path, int flags, ...);
int __real_openat(int directory, const char* path, int flags, ...);
int __real_fcntl(int fd, int command, ...);
int __real_ioctl(int fd, unsigned long request, ...);
long __real_syscall(long number, ...);
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*run)(void*), void* argument);

}  // extern "C"

using vmm::testing::internal::DecideSyscall;
using vmm::testing::internal::Intercept;
using vmm::testing::internal::kLooksAtUnread;
using vmm::testing::internal::look_at_unread;
using vmm::testing::internal::RowOf;
using vmm::testing::internal::SyscallDecision;

extern "C" {

int __wrap_stat(const char* path, struct stat* result) {
  return Intercept(RowOf("stat"), -1,
                   [&] { return __real_stat(path, result); });
}

int __wrap_lstat(const char* path, struct stat* result) {
  return Intercept(RowOf("lstat"), -1,
                   [&] { return __real_lstat(path, result); });
}

int __wrap_fstat(int fd, struct stat* result) {
  vmm::testing::internal::BlockIfMarked(fd);
  return Intercept(RowOf("fstat"), -1,
                   [&] { return __real_fstat(fd, result); });
}

int __wrap_statx(int directory, const char* path, int flags, unsigned mask,
                 struct statx* result) {
  return Intercept(RowOf("statx"), -1, [&] {
    return __real_statx(directory, path, flags, mask, result);
  });
}

int __wrap_fstatat(int directory, const char* path, struct stat* result,
                   int flags) {
  return Intercept(RowOf("fstatat"), -1, [&] {
    return __real_fstatat(directory, path, result, flags);
  });
}

int __wrap_fstatfs(int fd, struct statfs* result) {
  vmm::testing::internal::BlockIfMarked(fd);
  return Intercept(RowOf("fstatfs"), -1,
                   [&] { return __real_fstatfs(fd, result); });
}

int __wrap_statfs(const char* path, struct statfs* result) {
  return Intercept(RowOf("statfs"), -1,
                   [&] { return __real_statfs(path, result); });
}

DIR* __wrap_opendir(const char* path) {
  return Intercept(RowOf("opendir"), static_cast<DIR*>(nullptr),
                   [&] { return __real_opendir(path); });
}

DIR* __wrap_fdopendir(int fd) {
  return Intercept(RowOf("fdopendir"), static_cast<DIR*>(nullptr),
                   [&] { return __real_fdopendir(fd); });
}

dirent* __wrap_readdir(DIR* directory) {
  return Intercept(RowOf("readdir"), static_cast<dirent*>(nullptr),
                   [&] { return __real_readdir(directory); });
}

int __wrap_closedir(DIR* directory) {
  return Intercept(RowOf("closedir"), -1,
                   [&] { return __real_closedir(directory); });
}

int __wrap_gethostname(char* name, size_t size) {
  return Intercept(RowOf("gethostname"), -1,
                   [&] { return __real_gethostname(name, size); });
}

int __wrap_access(const char* path, int mode) {
  return Intercept(RowOf("access"), -1,
                   [&] { return __real_access(path, mode); });
}

ssize_t __wrap_readlink(const char* path, char* text, size_t size) {
  return Intercept(RowOf("readlink"), ssize_t{-1},
                   [&] { return __real_readlink(path, text, size); });
}

ssize_t __wrap_readlinkat(int directory, const char* path, char* text,
                          size_t size) {
  return Intercept(RowOf("readlinkat"), ssize_t{-1}, [&] {
    return __real_readlinkat(directory, path, text, size);
  });
}

char* __wrap_realpath(const char* path, char* result) {
  return Intercept(RowOf("realpath"), static_cast<char*>(nullptr),
                   [&] { return __real_realpath(path, result); });
}

int __wrap_mkdir(const char* path, mode_t mode) {
  return Intercept(RowOf("mkdir"), -1,
                   [&] { return __real_mkdir(path, mode); });
}

int __wrap_mkdirat(int directory, const char* path, mode_t mode) {
  return Intercept(RowOf("mkdirat"), -1,
                   [&] { return __real_mkdirat(directory, path, mode); });
}

int __wrap_chmod(const char* path, mode_t mode) {
  return Intercept(RowOf("chmod"), -1,
                   [&] { return __real_chmod(path, mode); });
}

int __wrap_fchmod(int fd, mode_t mode) {
  return Intercept(RowOf("fchmod"), -1,
                   [&] { return __real_fchmod(fd, mode); });
}

int __wrap_fchmodat(int directory, const char* path, mode_t mode, int flags) {
  return Intercept(RowOf("fchmodat"), -1, [&] {
    return __real_fchmodat(directory, path, mode, flags);
  });
}

int __wrap_link(const char* path, const char* to) {
  return Intercept(RowOf("link"), -1, [&] { return __real_link(path, to); });
}

int __wrap_linkat(int from, const char* path, int directory, const char* to,
                  int flags) {
  return Intercept(RowOf("linkat"), -1, [&] {
    return __real_linkat(from, path, directory, to, flags);
  });
}

int __wrap_rename(const char* path, const char* to) {
  return Intercept(RowOf("rename"), -1,
                   [&] { return __real_rename(path, to); });
}

int __wrap_renameat(int from, const char* path, int directory, const char* to) {
  return Intercept(RowOf("renameat"), -1,
                   [&] { return __real_renameat(from, path, directory, to); });
}

int __wrap_ftruncate(int fd, off_t size) {
  return Intercept(RowOf("ftruncate"), -1,
                   [&] { return __real_ftruncate(fd, size); });
}

int __wrap_fsync(int fd) {
  return Intercept(RowOf("fsync"), -1, [&] { return __real_fsync(fd); });
}

int __wrap_flock(int fd, int operation) {
  if (operation == LOCK_UN) {
    return Intercept(RowOf("flock(LOCK_UN)"), -1,
                     [&] { return __real_flock(fd, operation); });
  }
  return Intercept(RowOf("flock"), -1,
                   [&] { return __real_flock(fd, operation); });
}

int __wrap_unlink(const char* path) {
  return Intercept(RowOf("unlink"), -1, [&] { return __real_unlink(path); });
}

int __wrap_unlinkat(int directory, const char* path, int flags) {
  return Intercept(RowOf("unlinkat"), -1,
                   [&] { return __real_unlinkat(directory, path, flags); });
}

int __wrap_rmdir(const char* path) {
  return Intercept(RowOf("rmdir"), -1, [&] { return __real_rmdir(path); });
}

void* __wrap_mmap(void* at, size_t size, int protection, int flags, int fd,
                  off_t offset) {
  return Intercept(RowOf("mmap"), MAP_FAILED, [&] {
    return __real_mmap(at, size, protection, flags, fd, offset);
  });
}

int __wrap_mprotect(void* at, size_t size, int protection) {
  return Intercept(RowOf("mprotect"), -1,
                   [&] { return __real_mprotect(at, size, protection); });
}

int __wrap_munmap(void* at, size_t size) {
  return Intercept(RowOf("munmap"), -1,
                   [&] { return __real_munmap(at, size); });
}

int __wrap_waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  return Intercept(RowOf("waitid"), -1,
                   [&] { return __real_waitid(type, id, info, options); });
}

pid_t __wrap_waitpid(pid_t pid, int* status, int options) {
  return Intercept(RowOf("waitpid"), pid_t{-1},
                   [&] { return __real_waitpid(pid, status, options); });
}

int __wrap_kill(pid_t pid, int signal) {
  return Intercept(RowOf("kill"), -1, [&] { return __real_kill(pid, signal); });
}

int __wrap_pidfd_open(pid_t pid, unsigned flags) {
  return Intercept(RowOf("pidfd_open"), -1,
                   [&] { return __real_pidfd_open(pid, flags); });
}

int __wrap_pidfd_send_signal(int fd, int signal, siginfo_t* info,
                             unsigned flags) {
  return Intercept(RowOf("pidfd_send_signal"), -1, [&] {
    return __real_pidfd_send_signal(fd, signal, info, flags);
  });
}

ssize_t __wrap_getrandom(void* data, size_t size, unsigned flags) {
  return Intercept(RowOf("getrandom"), ssize_t{-1},
                   [&] { return __real_getrandom(data, size, flags); });
}

int __wrap_getentropy(void* data, size_t size) {
  return Intercept(RowOf("getentropy"), -1,
                   [&] { return __real_getentropy(data, size); });
}

// No steps: there is nothing that ends a process while it asks these.
int __wrap_getrlimit(decltype(RLIMIT_NOFILE) which, rlimit* limit) {
  const SyscallDecision decision = DecideSyscall(RowOf("getrlimit"));
  if (decision.perform) return __real_getrlimit(which, limit);
  errno = decision.error;
  return -1;
}

int __wrap_setrlimit(decltype(RLIMIT_NOFILE) which, const rlimit* limit) {
  const SyscallDecision decision = DecideSyscall(RowOf("setrlimit"));
  if (decision.perform) return __real_setrlimit(which, limit);
  errno = decision.error;
  return -1;
}

int __wrap_getpwnam_r(const char* name, passwd* entry, char* memory,
                      size_t size, passwd** found) {
  const SyscallDecision decision = DecideSyscall(RowOf("getpwnam_r"));
  if (decision.perform) {
    return __real_getpwnam_r(name, entry, memory, size, found);
  }
  *found = nullptr;
  return decision.error;
}

// Of its failures dlerror() says nothing here.
int __wrap_dlinfo(void* library, int request, void* result) {
  return DecideSyscall(RowOf("dlinfo")).perform
             ? __real_dlinfo(library, request, result)
             : -1;
}

// The variadic ones take at most one argument more, as wide as a register.
int __wrap_open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  if (std::string_view(path).starts_with(kLooksAtUnread)) {
    return look_at_unread = __real_open(path, flags, mode);
  }
  return Intercept(RowOf("open"), -1,
                   [&] { return __real_open(path, flags, mode); });
}

int __wrap_openat(int directory, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  return Intercept(RowOf("openat"), -1,
                   [&] { return __real_openat(directory, path, flags, mode); });
}

int __wrap_fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  // Asked of numbers that may be no descriptors; it has no other error.
  if (command == F_GETFD) return __real_fcntl(fd, command);
  if (command == F_ADD_SEALS) vmm::testing::internal::BlockIfMarked(fd);
  return Intercept(RowOf("fcntl"), -1,
                   [&] { return __real_fcntl(fd, command, argument); });
}

int __wrap_ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  return Intercept(RowOf("ioctl"), -1,
                   [&] { return __real_ioctl(fd, request, argument); });
}

long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto perform = [&] {
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  };
  for (long uncounted : vmm::testing::internal::kUncounted) {
    if (number == uncounted) return perform();
  }
  const auto* row = vmm::testing::internal::RowOfNumber(number);
  if (row == nullptr) {
    vmm::testing::internal::NoteUnlisted(number);
    return perform();
  }
  return Intercept(*row, -1L, perform);
}

// Answers its error instead of setting errno.
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*run)(void*), void* argument) {
  const vmm::testing::internal::Step step("pthread_create");
  const auto decision =
      vmm::testing::internal::DecideSyscall(RowOf("pthread_create"));
  if (!decision.perform) return decision.error;
  return __real_pthread_create(thread, attributes, run, argument);
}

// std::thread's own start, which throws as it does when the system has no
// thread left. Its second parameter is a unique_ptr, which goes by reference.
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    void* thread, void* state, void (*depend)());
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    void* thread, void* state, void (*depend)()) {
  const vmm::testing::internal::Step step("std::thread");
  const auto decision =
      vmm::testing::internal::DecideSyscall(RowOf("std::thread"));
  if (!decision.perform) {
    throw std::system_error(decision.error, std::generic_category());
  }
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
      thread, state, depend);
}

// Calls compiled with _FORTIFY_SOURCE: see syscall_wraps_sockets_posix.cc.
ssize_t __wrap___readlink_chk(const char* path, char* text, size_t size,
                              size_t) {
  return __wrap_readlink(path, text, size);
}
char* __wrap___realpath_chk(const char* path, char* result, size_t) {
  return __wrap_realpath(path, result);
}
int __wrap___open_2(const char* path, int flags) {
  return __wrap_open(path, flags, 0);
}
int __wrap___openat_2(int directory, const char* path, int flags) {
  return __wrap_openat(directory, path, flags, 0);
}

}  // extern "C"

// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
