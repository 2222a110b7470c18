// Counts what processes hold, from /proc: the kernel's own record, so a killed
// process's memory is back at once and nothing can leak a count.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {
namespace {

constexpr int kSlots = 64;

// By inode: several descriptors and mappings of one object count once.
using Held = std::map<std::uint64_t, std::uint64_t>;

void ForEachNumberIn(const std::string& folder,
                     const std::function<void(const char*)>& visit) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') {
      visit(entry->d_name);
    }
  }
  closedir(dir);
}

void AddDescriptors(const std::string& process, const std::string& label,
                    Held* held) {
  const std::string prefix = "/memfd:" + label;
  const std::string folder = process + "/fd";
  ForEachNumberIn(folder, [&](const char* number) {
    const std::string path = folder + "/" + number;
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof(target));
    if (length <= 0 ||
        std::string_view(target, static_cast<std::size_t>(length))
                .substr(0, prefix.size()) != prefix) {
      return;
    }
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) {
      (*held)[info.st_ino] = static_cast<std::uint64_t>(info.st_size);
    }
  });
}

void AddMappings(const std::string& process, const std::string& label,
                 Held* held) {
  std::ifstream maps(process + "/maps");
  const std::string mark = "/memfd:" + label;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(mark) == std::string::npos) continue;
    unsigned long long start = 0;
    unsigned long long end = 0;
    unsigned long long offset = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %llu", &start, &end,
                    &offset, &inode) != 4) {
      continue;
    }
    std::uint64_t& size = (*held)[inode];
    if (offset + (end - start) > size) size = offset + (end - start);
  }
}

// Upper bounds of the bytes in use, by device, in a file of the instance.
// Every process adds to it before it creates memory; nobody subtracts.
class SharedBounds {
 public:
  explicit SharedBounds(const std::string& instance) {
    const std::string path =
        "/dev/shm/vmmhost1." + std::to_string(UserId()) + "." + instance;
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ < 0) return;
    struct stat info {};
    if (flock(fd_, LOCK_EX) != 0 || fstat(fd_, &info) != 0 ||
        info.st_uid != geteuid() || !S_ISREG(info.st_mode) ||
        (info.st_size < kBytes && ftruncate(fd_, kBytes) != 0)) {
      close(fd_);
      fd_ = -1;
      return;
    }
  }
  ~SharedBounds() {
    if (fd_ >= 0) close(fd_);
  }
  SharedBounds(const SharedBounds&) = delete;
  SharedBounds& operator=(const SharedBounds&) = delete;

  // False when the file cannot be had: then nothing is known.
  bool Read(int slot, std::uint64_t* bound) const {
    return fd_ >= 0 &&
           pread(fd_, bound, sizeof(*bound), At(slot)) == sizeof(*bound);
  }
  void Write(int slot, std::uint64_t bound) const {
    if (fd_ >= 0 && pwrite(fd_, &bound, sizeof(bound), At(slot)) < 0) return;
  }

 private:
  static constexpr off_t kBytes = kSlots * sizeof(std::uint64_t);
  static off_t At(int slot) {
    return static_cast<off_t>(static_cast<std::size_t>(slot) *
                              sizeof(std::uint64_t));
  }
  int fd_;
};

}  // namespace

std::uint64_t BytesHeld(const std::string& instance, const Uuid& uuid) {
  // Device and block memory differ in what follows this common part only.
  const std::string label = "vmmhost1." + instance + "." + UuidHex(uuid) + ".";
  Held held;
  ForEachNumberIn("/proc", [&](const char* pid) {
    const std::string process = std::string("/proc/") + pid;
    AddDescriptors(process, label, &held);
    AddMappings(process, label, &held);
  });
  std::uint64_t sum = 0;
  for (const auto& [inode, size] : held) sum += size;
  return sum;
}

std::optional<OsMemory> CreateWithinBudget(const MemoryLabel& label,
                                           std::size_t size, int slot,
                                           std::uint64_t budget,
                                           bool* over_budget) {
  *over_budget = size > budget;
  if (*over_budget) return std::nullopt;
  // Held until the memory exists, so that nobody counts in between.
  const SharedBounds bounds(label.instance);
  std::uint64_t bound = 0;
  if (!bounds.Read(slot, &bound) || bound > budget - size) {
    bound = BytesHeld(label.instance, label.uuid);
    *over_budget = bound > budget - size;
    bounds.Write(slot, bound);
    if (*over_budget) return std::nullopt;
  }
  bounds.Write(slot, bound + size);
  return CreateMemory(label, size);
}

}  // namespace vmm::hostdriver
