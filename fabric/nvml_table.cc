#include "fabric/nvml_table.h"

namespace vmm::fabric::nvml {
namespace {

template <typename Function>
void Resolve(const Nvml::Lookup& lookup, const char* name, Function*& entry) {
  entry = reinterpret_cast<Function*>(lookup(name));
}

}  // namespace

Table ReadTable(const Nvml::Lookup& lookup) {
  Table table;
  Resolve(lookup, "nvmlInit_v2", table.init);
  Resolve(lookup, "nvmlShutdown", table.shutdown);
  Resolve(lookup, "nvmlErrorString", table.error_string);
  Resolve(lookup, "nvmlSystemGetDriverVersion", table.driver_version);
  Resolve(lookup, "nvmlSystemGetConfComputeState", table.conf_compute);
  Resolve(lookup, "nvmlDeviceGetHandleByUUID", table.by_uuid);
  Resolve(lookup, "nvmlDeviceIsMigDeviceHandle", table.is_mig_instance);
  Resolve(lookup, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
          table.gpu_of_instance);
  Resolve(lookup, "nvmlDeviceGetMigMode", table.mig_mode);
  Resolve(lookup, "nvmlDeviceGetGpuFabricInfo", table.fabric_v1);
  Resolve(lookup, "nvmlDeviceGetGpuFabricInfoV", table.fabric_v2);
  Resolve(lookup, "nvmlDeviceGetP2PStatus", table.p2p_status);
  return table;
}

absl::StatusCode CodeOf(int result) {
  switch (result) {
    case kNotSupported:
    case kFunctionNotFound:
    case kArgumentVersionMismatch:
      return absl::StatusCode::kUnimplemented;
    case kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case kNoPermission:
      return absl::StatusCode::kPermissionDenied;
    case kNotFound:
      return absl::StatusCode::kNotFound;
    case kDriverNotLoaded:
    case kVersionMismatch:
      return absl::StatusCode::kFailedPrecondition;
    case kTimeout:
      return absl::StatusCode::kDeadlineExceeded;
    case kGpuIsLost:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace vmm::fabric::nvml
