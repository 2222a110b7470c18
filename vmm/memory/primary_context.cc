#include <string>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/device_attribute.h"

namespace vmm {

using platform::Driver;

namespace {

// What the compute mode has to do with it; "" if nothing.
std::string WhyUnavailable(const Device& device, CUresult result) {
  if (result != CUDA_ERROR_DEVICE_UNAVAILABLE) return "";
  const absl::StatusOr<int> mode =
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, "COMPUTE_MODE");
  // Without -i it acts on every GPU.
  const std::string mend = absl::StrCat(
      "as root: nvidia-smi -i ", device.uuid().ToString(),
      " -c DEFAULT (of a MIG instance -i its GPU's index: nvidia-smi -L)");
  switch (mode.value_or(CU_COMPUTEMODE_DEFAULT)) {
    case CU_COMPUTEMODE_PROHIBITED:
      return absl::StrCat("The device is in compute mode PROHIBITED; ", mend);
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return absl::StrCat(
          "The device is in compute mode EXCLUSIVE_PROCESS, and another "
          "process has a context on it; let both be clients of MPS, or ",
          mend);
    default:
      return "";
  }
}

}  // namespace

void RetainedContextTraits::Close(const Value& value) {
  const CUresult r = (*value.driver)->cuDevicePrimaryCtxRelease(value.device);
  if (r == CUDA_SUCCESS) return;  // Its words take memory, in a destructor.
  platform::ReportReleaseFailure(value.driver->Error(
      r, absl::StrCat("cuDevicePrimaryCtxRelease(device=", value.device, ")")));
}

void PushedContextTraits::Close(const Value& value) {
  CUcontext popped = nullptr;
  platform::ReportReleaseFailure(value.driver->Error(
      (*value.driver)->cuCtxPopCurrent(&popped), "cuCtxPopCurrent()"));
}

absl::StatusOr<CurrentContext> MakeCurrent(const Driver& driver,
                                           CUcontext context) {
  if (CUresult r = driver->cuCtxPushCurrent(context); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxPushCurrent()");
  }
  return CurrentContext::Adopt({driver, 0, context});
}

absl::StatusOr<PrimaryContext> PrimaryContext::Retain(const Device& device) {
  const Driver& driver = device.driver();
  CUcontext context = nullptr;
  if (CUresult r =
          driver->cuDevicePrimaryCtxRetain(&context, device.cuda_device());
      r != CUDA_SUCCESS) {
    return platform::Annotate(
        driver.Error(r, absl::StrCat("cuDevicePrimaryCtxRetain(",
                                     device.Describe(), ")")),
        "", WhyUnavailable(device, r));
  }
  return PrimaryContext({driver, device.cuda_device(), context});
}

absl::StatusOr<bool> PrimaryContext::IsActive(const Device& device) {
  const Driver& driver = device.driver();
  unsigned flags = 0;
  int active = 0;
  if (CUresult r = driver->cuDevicePrimaryCtxGetState(device.cuda_device(),
                                                      &flags, &active);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuDevicePrimaryCtxGetState(", device.Describe(), ")"));
  }
  return active != 0;
}

absl::StatusOr<CurrentContext> PrimaryContext::MakeCurrent() const {
  return vmm::MakeCurrent(*context_.get().driver, context());
}

}  // namespace vmm
