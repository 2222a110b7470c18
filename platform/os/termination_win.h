// What Windows calls when a console asks its processes to end; internal to
// platform/.
#ifndef VMMSHARE_PLATFORM_OS_TERMINATION_WIN_H_
#define VMMSHARE_PLATFORM_OS_TERMINATION_WIN_H_

#include <cstdint>

namespace vmm::platform {

// Wakes WaitForTermination(), but not of a user who logs off. Of `event`
// (CTRL_C_EVENT and so on) those whose process Windows ends when this returns it
// does not return from: the process ends by itself, once things are in order, or
// some seconds later by Windows.
bool OnConsoleEvent(std::uint32_t event);

// Undoes HoldTermination(), if it was called: what the console asks does again what
// it did before, and what it asked until now is forgotten.
void LetGoOfTermination();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_TERMINATION_WIN_H_
