// What the CUDA driver itself says of a device's fabric, from CUDA 13.4 on: for
// where NVML cannot be asked, in a container without it for instance.
//
// The signatures are those of NVIDIA's documentation. A driver that lacks an entry
// point, or answers otherwise than documented, is a Status that says so. Nobody
// has run this on such a driver: the host-memory driver models it.
#ifndef VMMSHARE_FABRIC_DRIVER_FABRIC_H_
#define VMMSHARE_FABRIC_DRIVER_FABRIC_H_

#include <cuda.h>

#include "absl/status/statusor.h"
#include "fabric/nvml.h"
#include "platform/cuda/driver.h"

namespace vmm::fabric {

// Cluster and clique; the rest is NVML's alone, see FabricInfo::of_driver.
//   UNIMPLEMENTED  the driver is older
//   NOT_FOUND      it names no clique of pointers to one device
//   INTERNAL       it names more cliques than any device has
//   else           as the driver answers
absl::StatusOr<FabricInfo> FabricOfDriver(const platform::Driver& driver,
                                          CUdevice device);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_DRIVER_FABRIC_H_
