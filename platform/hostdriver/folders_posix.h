// What is in a folder, and the files that processes share in /dev/shm.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_FOLDERS_POSIX_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_FOLDERS_POSIX_H_

#include <functional>
#include <string>

namespace vmm::hostdriver {

inline constexpr char kSharedFolder[] = "/dev/shm";

// Calls `visit` with each name in `folder`; with none if it cannot be read.
void ForEachIn(const std::string& folder,
               const std::function<void(const char* name)>& visit);
// The same for names that begin with a digit: processes, descriptors.
void ForEachNumberIn(const std::string& folder,
                     const std::function<void(const char* name)>& visit);

// Removes the files of /dev/shm whose names begin with `prefix` and that
// processes left behind when killed. `lock` takes a file's lock, or is false
// while a process that uses the file has it.
void RemoveLeftBehind(const std::string& prefix, bool (*lock)(int fd));

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_FOLDERS_POSIX_H_
