#include "platform/hostdriver/folders_posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>

namespace vmm::hostdriver {

void ForEachIn(const std::string& folder,
               const std::function<void(const char* name)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()),
                                                &closedir);
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir.get())) visit(entry->d_name);
}

void ForEachNumberIn(const std::string& folder,
                     const std::function<void(const char* name)>& visit) {
  ForEachIn(folder, [&visit](const char* name) {
    if (name[0] >= '0' && name[0] <= '9') visit(name);
  });
}

void RemoveLeftBehind(const std::string& prefix, bool (*lock)(int fd)) {
  ForEachIn(kSharedFolder, [&](const std::string& name) {
    if (name.compare(0, prefix.size(), prefix) != 0) return;
    const std::string path = std::string(kSharedFolder) + "/" + name;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    if (lock(fd)) unlink(path.c_str());
    close(fd);
  });
}

}  // namespace vmm::hostdriver
