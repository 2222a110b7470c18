// Threads that nobody joins.
#ifndef VMMSHARE_VMM_PYTHON_CORE_DETACH_H_
#define VMMSHARE_VMM_PYTHON_CORE_DETACH_H_

#include <functional>

namespace vmm::python {

// Runs `body` on one, which debuggers and `top -H` call `name`, of at most 15
// characters. It begins as the library's threads do: no signal of the process is
// delivered to it but those of a fault, for a program may wait for one with it
// blocked. Throws std::system_error where none can be had.
void Detach(const char* name, std::function<void()> body);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_DETACH_H_
