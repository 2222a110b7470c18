// What the environment says of each device's NVLink fabric.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_CONFIG_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_CONFIG_H_

#include "platform/hostdriver/memory_label.h"

namespace vmm::hostdriver {

struct DeviceFabric {
  static constexpr unsigned char kInProgress = 2;  // NVML's values.
  static constexpr unsigned char kCompleted = 3;

  unsigned char state = kCompleted;  // As measured on H100 and H200.
  int status = 0;                    // NVML's result of joining.
  Uuid cluster{};                    // All zero: of none beyond this node.
  unsigned clique = 0;
  unsigned health = 0;
  bool mig = false;

  // Whether the device's memory can be shared with other nodes.
  bool joined() const {
    return state == kCompleted && status == 0 && !mig && cluster != Uuid{};
  }
  // Whether it may yet be so.
  bool joining() const { return state == kInProgress && !mig; }
};

// For the device with this physical number. Stop()s on a value that cannot be
// understood.
DeviceFabric ReadDeviceFabric(int device);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_CONFIG_H_
