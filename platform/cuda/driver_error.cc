// The driver's results as absl::Status, and back.
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

// Of CUDA 13.4, whose cuda.h names them; drivers are newer than headers.
constexpr auto kMulticastResourceFull = static_cast<CUresult>(47);
constexpr auto kFabricNotReady = static_cast<CUresult>(919);

constexpr char kResultPayload[] = "vmmshare/CUresult";

}  // namespace

absl::Status Driver::Error(CUresult result, absl::string_view call,
                           absl::string_view advice) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (state_->table.cuGetErrorName(result, &name) != CUDA_SUCCESS) {
    name = "a result this driver cannot name";
  }
  if (state_->table.cuGetErrorString(result, &text) != CUDA_SUCCESS) {
    text = "no description";
  }
  // Drivers have few results for what they do not get from the system.
  std::string limit;
  if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_UNKNOWN ||
      result == CUDA_ERROR_OPERATING_SYSTEM) {
    limit = NearLimit();
  }
  if (!limit.empty()) advice = limit;
  if (result == CUDA_ERROR_INVALID_CONTEXT && advice.empty()) {
    advice =
        "On this thread no context is current, or another device's: make one "
        "of the device current first (cuCtxSetCurrent; in Python "
        "torch.cuda.set_device(), or cuda.core's Device().set_current())";
  }
  absl::Status status(
      limit.empty() ? CodeOf(result) : absl::StatusCode::kResourceExhausted,
      absl::StrCat(call, " answered ", name, " (", static_cast<int>(result),
                   ": ", text, ")", advice.empty() ? "" : ". ", advice));
  status.SetPayload(kResultPayload,
                    absl::Cord(absl::StrCat(static_cast<int>(result))));
  return status;
}

absl::StatusCode CodeOf(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_SUCCESS:
      return absl::StatusCode::kOk;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
      return absl::StatusCode::kInvalidArgument;
    case CUDA_ERROR_OUT_OF_MEMORY:
    case kMulticastResourceFull:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_FILE_NOT_FOUND:
      return absl::StatusCode::kNotFound;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return absl::StatusCode::kFailedPrecondition;
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::StatusCode::kPermissionDenied;
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case CUDA_ERROR_NOT_READY:
    case kFabricNotReady:
      return absl::StatusCode::kUnavailable;
    case CUDA_ERROR_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case CUDA_ERROR_UNKNOWN:
      return absl::StatusCode::kUnknown;
    default:
      return absl::StatusCode::kInternal;
  }
}

std::optional<CUresult> ResultOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kResultPayload);
  int number = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &number)) {
    return std::nullopt;
  }
  return static_cast<CUresult>(number);
}

void ReportReleaseFailure(const absl::Status& status) {
  if (status.ok()) return;
  const std::optional<CUresult> result = ResultOf(status);
  const bool driver_is_gone = result == CUDA_ERROR_DEINITIALIZED ||
                              result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (driver_is_gone || IsForkedChild()) return;
  absl::FPrintF(stderr, "vmmshare: a release failed, memory may leak: %s\n",
                status.ToString());
}

}  // namespace vmm::platform
