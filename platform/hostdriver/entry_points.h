// The calls that this driver has, by name.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_ENTRY_POINTS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_ENTRY_POINTS_H_

#include <string_view>

namespace vmm::hostdriver {

// Whether cuGetProcAddress finds `name`, in whatever version.
bool IsEntry(std::string_view name);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_ENTRY_POINTS_H_
