// What the comparison asks of the operating system. Per-OS: os_posix.cc and
// os_win.cc.
#ifndef VMMSHARE_BENCH_COMPARE_OS_H_
#define VMMSHARE_BENCH_COMPARE_OS_H_

#include <cstdint>
#include <string>

namespace bench::compare {

// CPU time in nanoseconds. Linux: CLOCK_THREAD_CPUTIME_ID and
// CLOCK_PROCESS_CPUTIME_ID. Windows: GetThreadTimes and GetProcessTimes, which
// count in ticks of 15.6 ms.
std::int64_t ThreadCpuNs();
std::int64_t ProcessCpuNs();

// Bytes of address space in use (Linux: VmSize); 0 when it cannot be had.
std::uint64_t AddressSpaceBytes();
// Open descriptors, or handles; 0 when it cannot be had.
std::uint64_t OpenHandles();

// Whether standard error is a terminal.
bool StandardErrorIsATerminal();

// Sets a variable of this process's environment, unless it is set.
void SetVariable(const std::string& name, const std::string& value);

// What the comparison calls the clock in its header.
std::string ClockName();

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_OS_H_
