// The real try behind Device::Probe: attributes are not believed, because they
// say "supported" where cuMemCreate or the export then fails.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/keepable.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/own_stream.h"
#include "vmm/memory/mapping.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

// For a word to be written, which takes microseconds where nothing stops the device.
constexpr absl::Duration kPatience = absl::Seconds(10);

// On a stream of its own, beside whatever the program does or captures. `mapping`
// stays for good where the device may still come to it.
absl::Status WriteAndRead(const Driver& driver, Mapping mapping) {
  constexpr std::uint32_t kWritten = 0x5eed1234;
  std::uint32_t read = 0;
  const CUdeviceptr address = mapping.address();
  platform::Keepable<Mapping> kept(std::move(mapping));
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  absl::Status done =
      driver.Error(driver->cuMemsetD32Async(address, kWritten, 1, stream),
                   "cuMemsetD32Async() on imported memory");
  const absl::StatusOr<bool> ended = HasEndedBy(own, Deadline::In(kPatience));
  if (ended.ok() && !*ended) {
    std::move(kept).KeepForGood();
    return StandsStill("a fill of imported memory in 10 s");
  }
  done.Update(ended.status());
  // Not before: to such memory of the host the call returns when the copy is made.
  if (done.ok()) {
    done = driver.Error(
        driver->cuMemcpyDtoHAsync(&read, address, sizeof(read), stream),
        "cuMemcpyDtoHAsync() from imported memory");
  }
  // The memory goes next, also after an error. A fill does not wait, and to
  // unmap memory under it is a fault that costs the program its context.
  done.Update(driver.Error(driver->cuStreamSynchronize(stream),
                           "cuStreamSynchronize() after use of it"));
  RETURN_IF_ERROR(done);
  if (read != kWritten) {
    return absl::DataLossError(
        absl::StrCat("imported memory read back 0x", absl::Hex(read),
                     " where 0x", absl::Hex(kWritten), " was written"));
  }
  return absl::OkStatus();
}

// Writes and reads back one word. Only where the program has made the device's
// primary context active already: a probe creates no context, which would cost
// some hundred megabytes of the device.
absl::Status Touch(const Device& device, Mapping mapping) {
  ASSIGN_OR_RETURN(const bool active, PrimaryContext::IsActive(device));
  if (!active) return absl::OkStatus();
  ASSIGN_OR_RETURN(const PrimaryContext context,
                   PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(const CurrentContext current, context.MakeCurrent());
  return WriteAndRead(device.driver(), std::move(mapping));
}

absl::Status RoundTrip(const Device& device, const Exporter& exporter) {
  const Driver& driver = device.driver();
  const Location here = Location::On(device);
  const HandleKindSet kinds = {exporter.kind};
  ASSIGN_OR_RETURN(const std::uint64_t size,
                   PhysicalMemory::Granularity(driver, here, kinds));
  const ChunkLayout layout{size, size};

  ASSIGN_OR_RETURN(const PhysicalMemory created,
                   PhysicalMemory::Create(driver, here, layout, kinds));
  ASSIGN_OR_RETURN(const ExportedHandle exported,
                   exporter.make(driver, created.handle(0)));
  ASSIGN_OR_RETURN(OwnedMemoryHandle opened,
                   exporter.open(driver, exported, size));

  MemoryHandles handles;
  handles.push_back(std::move(opened));
  auto imported = std::make_shared<PhysicalMemory>(
      PhysicalMemory::FromHandles(std::move(handles), layout, here, {}));
  ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(driver, size));
  ASSIGN_OR_RETURN(
      Mapping mapping,
      Mapping::Map(std::make_shared<AddressRange>(std::move(range)), 0,
                   imported));
  RETURN_IF_ERROR(mapping.SetAccess({{here, Access::kReadWrite}}));
  return Touch(device, std::move(mapping));
}

// Of cuMemAlloc()'s memory: made and exported. Its maker cannot open it.
absl::Status TryBlock(const Device& device) {
  ASSIGN_OR_RETURN(const OwnedMadeBlock made, MakeBlock(device, 1));
  return ExportBlock(device.driver(), made.get().block).status();
}

// Whether it is of a context or a moment, and not of the kind. Touch() is in the
// program's own context: after a fault there, the driver answers every call with
// that, also of another kernel, until the program has made the context anew.
bool IsOfContextOrMoment(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:  // Another process has it for itself.
    case CUDA_ERROR_TIMEOUT:
      return true;
    default:
      return IsOfCapture(result);
  }
}

}  // namespace

bool MayPass(const absl::Status& reason) {
  if (absl::IsResourceExhausted(reason) || absl::IsUnavailable(reason)) {
    return true;
  }
  const std::optional<CUresult> result = platform::ResultOf(reason);
  return result.has_value() && IsOfContextOrMoment(*result);
}

absl::Status TryKind(const Device& device, HandleKind kind) {
  // Whoever captures a stream meanwhile knows nothing of it.
  const RelaxedCapture relaxed(device.driver());
  if (kind == HandleKind::kLegacyIpc) return TryBlock(device);
  ASSIGN_OR_RETURN(const Exporter* exporter, FindExporter(kind));
  return RoundTrip(device, *exporter);
}

absl::Status ProbeKind(const Device& device, HandleKind kind) {
  std::string (*advise)(CUresult) = nullptr;
  if (kind != HandleKind::kLegacyIpc) {
    ASSIGN_OR_RETURN(const Exporter* exporter, FindExporter(kind));
    advise = exporter->advice;
  }
  absl::Status tried = TryKind(device, kind);
  if (tried.ok()) return tried;
  const std::optional<CUresult> result = platform::ResultOf(tried);
  const std::string advice =
      result.has_value() && advise != nullptr ? advise(*result) : "";
  return platform::Annotate(tried,
                            absl::StrCat("memory of ", device.Describe(),
                                         " cannot be shared as ", NameOf(kind)),
                            advice);
}

}  // namespace vmm
