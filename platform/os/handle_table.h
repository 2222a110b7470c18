// The process's table of descriptors; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_HANDLE_TABLE_H_
#define VMMSHARE_PLATFORM_OS_HANDLE_TABLE_H_

namespace vmm::platform {

// Makes room for some thousand descriptors, as far as the process's limit goes.
// Linux doubles the table when it is full, and in a process of several threads
// waits then until no processor can still have the old one: 4 to 40 ms, within
// whatever call needed the next descriptor. This is that wait, before anybody
// measures, and none at all while the process has one thread. Elsewhere it does
// nothing.
void GrowHandleTable();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_HANDLE_TABLE_H_
