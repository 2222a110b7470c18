// The entry points of NVML, and its results as codes of absl.
//
// Internal to fabric/nvml.cc.
#ifndef VMMSHARE_FABRIC_NVML_TABLE_H_
#define VMMSHARE_FABRIC_NVML_TABLE_H_

#include "absl/status/status.h"
#include "fabric/nvml.h"
#include "fabric/nvml_abi.h"

namespace vmm::fabric::nvml {

Table ReadTable(const Nvml::Lookup& lookup);

absl::StatusCode CodeOf(int result);

}  // namespace vmm::fabric::nvml

#endif  // VMMSHARE_FABRIC_NVML_TABLE_H_
