// The version of NVIDIA's driver that is modelled, and what came with which.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_DRIVER_VERSION_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_DRIVER_VERSION_H_

#include "platform/hostdriver/cuda_api.h"

namespace vmm::hostdriver {

// As cuDriverGetVersion answers: 13000 for 13.0. From VMMSHARE_HOST_VERSION,
// read when it is first asked for; Stop()s on a value that cannot be.
int DriverVersion();

// Documented in cuda.h of these versions; the headers at hand may be older.
inline constexpr int kFabricHandlesSince = 12030;
inline constexpr int kHostLocationsSince = 12020;
// The attributes that tell of them.
inline constexpr int kHostNumaAttributeSince = 12090;
inline constexpr int kHostAttributeSince = 13000;
inline constexpr int kInvisibleSince = 13020;
inline constexpr int kFabricNotReadySince = 13040;
inline constexpr auto kMulticastResourceFull = static_cast<CUresult>(47);
inline constexpr auto kFabricNotReady = static_cast<CUresult>(919);
inline constexpr auto kInvisible = static_cast<CUmemLocationType>(5);
inline constexpr auto kLocalityDomain = static_cast<CUmemLocationType>(6);

// The location that the properties of memory tell, which is at `location`:
// as the version has it, or with the type that VMMSHARE_HOST_LOCATION says.
CUmemLocation ToldLocation(CUmemLocation location);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_DRIVER_VERSION_H_
