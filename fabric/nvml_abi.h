// What is used of NVML, declared here: machines that build vmmshare need not
// have nvml.h. Layouts, versions and values are NVML's binary interface and do
// not change. Internal to fabric/nvml.cc.
#ifndef VMMSHARE_FABRIC_NVML_ABI_H_
#define VMMSHARE_FABRIC_NVML_ABI_H_

namespace vmm::fabric::nvml {

enum Result : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kFunctionNotFound = 13,
  kGpuIsLost = 15,
  kVersionMismatch = 18,
  kArgumentVersionMismatch = 25,
};
using Device = void*;

struct FabricInfoV1 {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
struct FabricInfoV2 {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
static_assert(sizeof(FabricInfoV1) == 28 && sizeof(FabricInfoV2) == 36,
              "laid out as in nvml.h");
inline constexpr unsigned kFabricInfoV2 = sizeof(FabricInfoV2) | 2U << 24;

struct ConfComputeState {
  unsigned environment;
  unsigned feature;  // 1: on.
  unsigned dev_tools;
};
static_assert(sizeof(ConfComputeState) == 12, "laid out as in nvml.h");

inline constexpr int kNvLinkIndex = 2;  // NVML_P2P_CAPS_INDEX_NVLINK.

// Entry points; null where the library lacks them.
struct Table {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*conf_compute)(ConfComputeState*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*is_mig_instance)(Device, unsigned*) = nullptr;
  int (*gpu_of_instance)(Device, Device*) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  int (*fabric_v1)(Device, FabricInfoV1*) = nullptr;
  int (*fabric_v2)(Device, FabricInfoV2*) = nullptr;
  int (*p2p_status)(Device, Device, int, int*) = nullptr;
};

}  // namespace vmm::fabric::nvml

#endif  // VMMSHARE_FABRIC_NVML_ABI_H_
