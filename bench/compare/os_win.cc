#include <windows.h>

#include <cstdio>
#include <cstdlib>

#include "bench/compare/os.h"

namespace bench::compare {
namespace {

// A FILETIME counts 100 nanoseconds.
std::int64_t Ns(const FILETIME& time) {
  return ((static_cast<std::int64_t>(time.dwHighDateTime) << 32) |
          time.dwLowDateTime) *
         100;
}

}  // namespace

std::int64_t ThreadCpuNs() {
  FILETIME created{};
  FILETIME ended{};
  FILETIME kernel{};
  FILETIME user{};
  ::GetThreadTimes(::GetCurrentThread(), &created, &ended, &kernel, &user);
  return Ns(kernel) + Ns(user);
}

std::int64_t ProcessCpuNs() {
  FILETIME created{};
  FILETIME ended{};
  FILETIME kernel{};
  FILETIME user{};
  ::GetProcessTimes(::GetCurrentProcess(), &created, &ended, &kernel, &user);
  return Ns(kernel) + Ns(user);
}

std::uint64_t AddressSpaceBytes() {
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof(status);
  if (::GlobalMemoryStatusEx(&status) == 0) return 0;
  return status.ullTotalVirtual - status.ullAvailVirtual;
}

std::uint64_t OpenHandles() {
  DWORD count = 0;
  return ::GetProcessHandleCount(::GetCurrentProcess(), &count) == 0 ? 0
                                                                     : count;
}

bool StandardErrorIsATerminal() {
  DWORD mode = 0;
  return ::GetConsoleMode(::GetStdHandle(STD_ERROR_HANDLE), &mode) != 0;
}

void SetVariable(const std::string& name, const std::string& value) {
  if (std::getenv(name.c_str()) == nullptr) {
    ::_putenv_s(name.c_str(), value.c_str());
  }
}

std::string ClockName() {
  return "steady_clock (QueryPerformanceCounter); CPU time GetProcessTimes";
}

}  // namespace bench::compare
