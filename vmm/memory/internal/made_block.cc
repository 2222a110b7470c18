// Memory of cuMemAlloc() that vmmshare makes, where cuMemCreate()'s cannot be
// shared.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/own_stream.h"
#include "vmm/memory/internal/pointer.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

// On a stream of its own: no other's work is waited for.
absl::Status Zero(const Driver& driver, AddressSpan span) {
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  CUresult r = driver->cuMemsetD8Async(span.base, 0, span.size, stream);
  if (r == CUDA_SUCCESS) r = driver->cuStreamSynchronize(stream);
  return driver.Error(
      r, absl::StrCat("cuMemsetD8Async(", span.size, " bytes of ",
                      DescribePointer(span.base), ") and waiting for it"));
}

absl::Status FreeBlock(const MadeBlock& made) {
  const Driver& driver = *made.driver;
  const RelaxedCapture relaxed(driver);
  // Without it the driver may know the address all the same.
  const absl::StatusOr<CurrentContext> current = made.context->MakeCurrent();
  const CUdeviceptr at = made.block.span.base;
  const CUresult r = driver->cuMemFree(at);
  // Words take memory, in a destructor.
  if (r == CUDA_SUCCESS) return absl::OkStatus();
  return driver.Error(r, absl::StrCat("cuMemFree(", DescribePointer(at), ")"));
}

}  // namespace

void MadeBlockTraits::Close(const Value& value) {
  platform::ReportReleaseFailure(FreeBlock(value));
}

absl::StatusOr<OwnedMadeBlock> MakeBlock(const Device& device,
                                         std::uint64_t size) {
  if (size > std::numeric_limits<std::size_t>::max() - kBlockBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(size, " bytes are more than there are addresses"));
  }
  const std::uint64_t bytes =
      (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  MadeBlock made{driver, nullptr, {}};
  ASSIGN_OR_RETURN(PrimaryContext primary, PrimaryContext::Retain(device));
  made.context = std::make_shared<const PrimaryContext>(std::move(primary));
  ASSIGN_OR_RETURN(const CurrentContext current, made.context->MakeCurrent());
  CUdeviceptr address = 0;
  if (CUresult r = driver->cuMemAlloc(&address, bytes); r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuMemAlloc(", bytes, " bytes)"));
  }
  made.block.span = {address, bytes};
  OwnedMadeBlock owned = OwnedMadeBlock::Adopt(made);
  ASSIGN_OR_RETURN(made.block,
                   BlockAt(driver, address, HandleKind::kLegacyIpc));
  RETURN_IF_ERROR(Zero(driver, made.block.span));
  static_cast<void>(std::move(owned).Relinquish());
  return OwnedMadeBlock::Adopt(std::move(made));
}

}  // namespace vmm
