// For code on a thread that nobody joins: internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_KEEP_LOADED_POSIX_H_
#define VMMSHARE_PLATFORM_OS_KEEP_LOADED_POSIX_H_

namespace vmm::platform {

// The library that `inside` lies in is never unloaded any more. Nothing where that
// is the program itself, or no library.
void KeepLoaded(const void* inside);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_KEEP_LOADED_POSIX_H_
