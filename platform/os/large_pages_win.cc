#include "platform/os/large_pages.h"

namespace vmm::platform {

// Large pages want SeLockMemoryPrivilege here, and are never swapped.
void AdviseLargePages(void*, std::size_t) {}

}  // namespace vmm::platform
