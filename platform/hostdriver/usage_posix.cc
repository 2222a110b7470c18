// Counts what processes hold, from /proc: the kernel's own record, so a killed
// process's memory is back at once and nothing can leak a count.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string_view>

#include "platform/hostdriver/bounds_posix.h"
#include "platform/hostdriver/folders_posix.h"
#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {
namespace {

// By inode: several descriptors and mappings of one object count once.
using Held = std::map<std::uint64_t, std::uint64_t>;

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
                .substr(0, prefix.size()) != prefix ||
        target[prefix.size()] == static_cast<char>(MemoryLabel::Kind::kPool)) {
      return;
    }
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) {
      (*held)[info.st_ino] = static_cast<std::uint64_t>(info.st_size);
    }
  });
}

// All of a file of /proc, which tells no size beforehand.
std::string ReadAll(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  constexpr std::size_t kStep = 64 << 10;
  for (ssize_t got = 1; got > 0;) {
    const std::size_t size = text.size();
    text.resize(size + kStep);
    got = read(fd, text.data() + size, kStep);
    text.resize(size + static_cast<std::size_t>(got > 0 ? got : 0));
  }
  close(fd);
  return text;
}

void AddMappings(const std::string& process, const std::string& label,
                 Held* held) {
  const std::string text = ReadAll(process + "/maps");
  const std::string mark = "/memfd:" + label;
  for (std::size_t at = text.find(mark); at != std::string::npos;
       at = text.find(mark, at + 1)) {
    const std::size_t line = text.rfind('\n', at) + 1;  // 0 on the first line.
    unsigned long long start = 0;
    unsigned long long end = 0;
    unsigned long long offset = 0;
    unsigned long long inode = 0;
    if (std::sscanf(text.c_str() + line, "%llx-%llx %*s %llx %*s %llu", &start,
                    &end, &offset, &inode) != 4) {
      continue;
    }
    std::uint64_t& size = (*held)[inode];
    if (offset + (end - start) > size) size = offset + (end - start);
  }
}

}  // namespace

std::uint64_t BytesHeld(const std::string& instance, const Uuid& uuid) {
  const std::string label = LabelPrefix(instance, uuid);
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
                                           NotCreated* why) {
  *why = NotCreated::kOverBudget;
  if (size > budget) return std::nullopt;
  // Held until the memory exists, so that nobody counts in between.
  const BoundsLock bounds;
  if (bounds.timed_out()) {
    *why = NotCreated::kLockNotHad;
    return std::nullopt;
  }
  std::uint64_t bound = 0;
  if (!bounds.Read(slot, &bound) || bound > budget - size) {
    bound = BytesHeld(label.instance, label.uuid);
    bounds.Write(slot, bound);
    if (bound > budget - size) return std::nullopt;
  }
  bounds.Write(slot, bound + size);
  *why = NotCreated::kNoSystemCall;
  return CreateMemory(label, size);
}

}  // namespace vmm::hostdriver
