#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "bench/compare/os.h"

namespace bench::compare {
namespace {

std::int64_t ClockNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::int64_t ThreadCpuNs() { return ClockNs(CLOCK_THREAD_CPUTIME_ID); }
std::int64_t ProcessCpuNs() { return ClockNs(CLOCK_PROCESS_CPUTIME_ID); }

std::uint64_t AddressSpaceBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  char text[128] = "";
  const char* read = std::fgets(text, sizeof(text), file);
  std::fclose(file);
  // The first number: pages.
  return read == nullptr
             ? 0
             : std::strtoull(text, nullptr, 10) *
                   static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t OpenHandles() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(dir);
  return count - 1;  // Not the one that reads the folder.
}

bool StandardErrorIsATerminal() { return isatty(STDERR_FILENO) == 1; }

void SetVariable(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
}

std::string ClockName() {
  return "steady_clock (CLOCK_MONOTONIC); CPU time CLOCK_PROCESS_CPUTIME_ID";
}

}  // namespace bench::compare
