#include "vmm/weights/internal/memory_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/weights/internal/checksum_kernel.h"

namespace vmm::weights {
namespace {

bool CpuHas(const platform::Driver& driver, CUdeviceptr address, int node,
            Access access) {
  const CUmemLocation where = Location::HostNuma(node).ToCuda();
  unsigned long long flags = 0;
  return driver->cuMemGetAccess(&flags, &where, address) == CUDA_SUCCESS &&
         (flags & static_cast<unsigned>(access)) ==
             static_cast<unsigned>(access);
}

// Whether what a device would do is done by the CPU instead: it has no kernel, or no
// room for one.
bool IsForTheCpu(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsResourceExhausted(status);
}

}  // namespace

absl::StatusOr<MemoryCopy> MemoryCopy::Open(const platform::Driver& driver,
                                            CUdeviceptr address,
                                            std::uint64_t size, Access access) {
  ASSIGN_OR_RETURN(const PointerInfo info, Classify(driver, address));
  if (info.kind != PointerKind::kVmm) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory at 0x", absl::Hex(address),
                     " for a tensor set: ", info.advice));
  }
  const std::uint64_t before = address - info.range_base;
  if (before > info.range_size || size > info.range_size - before) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes at 0x", absl::Hex(address), " for a tensor set; only ",
        info.range_size - std::min(before, info.range_size), " are there"));
  }
  MemoryCopy copy(driver, address, size);
  if (info.host_numa_node.has_value() &&
      CpuHas(driver, address, *info.host_numa_node, access)) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's own type.
    copy.on_host_ = reinterpret_cast<std::uint8_t*>(address);
    return copy;
  }
  ASSIGN_OR_RETURN(const std::optional<int> ordinal,
                   ReachedFrom(driver, address, info));
  if (ordinal.has_value()) {
    ASSIGN_OR_RETURN(const Device device, Device::ByOrdinal(driver, *ordinal));
    ASSIGN_OR_RETURN(PrimaryContext context, PrimaryContext::Retain(device));
    copy.device_ = device;
    copy.primary_ = std::make_shared<const PrimaryContext>(std::move(context));
    copy.staging_ = std::make_shared<Staging>(device, copy.primary_);
    return copy;
  }
  if (CUresult r = driver->cuCtxGetCurrent(&copy.context_); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxGetCurrent()");
  }
  if (copy.context_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "memory at 0x", absl::Hex(address),
        " for a tensor set is mapped for no device that this process sees, and "
        "not for the CPU: map it for one, or make a context current in which "
        "it can be copied"));
  }
  return copy;
}

absl::StatusOr<CurrentContext> MemoryCopy::Enter() const {
  return primary_ != nullptr ? primary_->MakeCurrent()
                             : MakeCurrent(driver_, context_);
}

absl::Status MemoryCopy::Write(std::uint64_t offset,
                               absl::Span<const std::uint8_t> bytes) const {
  if (bytes.empty()) return absl::OkStatus();
  if (on_host_ != nullptr) {
    std::memcpy(on_host_ + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CurrentContext current, Enter());
  const CUdeviceptr to = address_ + offset;
  return Copied(driver_, driver_->cuMemcpyHtoD(to, bytes.data(), bytes.size()),
                "cuMemcpyHtoD", to, bytes.size());
}

absl::Status MemoryCopy::Read(std::uint64_t offset,
                              absl::Span<std::uint8_t> bytes) const {
  if (bytes.empty()) return absl::OkStatus();
  if (on_host_ != nullptr) {
    std::memcpy(bytes.data(), on_host_ + offset, bytes.size());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CurrentContext current, Enter());
  const CUdeviceptr from = address_ + offset;
  return Copied(driver_,
                driver_->cuMemcpyDtoH(bytes.data(), from, bytes.size()),
                "cuMemcpyDtoH", from, bytes.size());
}

absl::Status MemoryCopy::WriteFrom(std::uint64_t offset, CUdeviceptr from,
                                   std::uint64_t size) const {
  if (size == 0) return absl::OkStatus();
  if (on_host_ == nullptr) {
    RETURN_IF_ERROR(ComeAfterCurrentContext());
    ASSIGN_OR_RETURN(const CurrentContext current, Enter());
    return Copied(driver_, driver_->cuMemcpyDtoD(address_ + offset, from, size),
                  "cuMemcpyDtoD", from, size);
  }
  CUcontext current = nullptr;
  if (CUresult r = driver_->cuCtxGetCurrent(&current); r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuCtxGetCurrent()");
  }
  if (current == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        size, " bytes at 0x", absl::Hex(from),
        " are to be copied to memory of the host, and no context is current: "
        "make one current, of the device that has them"));
  }
  return Copied(driver_, driver_->cuMemcpyDtoH(on_host_ + offset, from, size),
                "cuMemcpyDtoH", from, size);
}

absl::Status MemoryCopy::ComeAfterCurrentContext() const {
  if (primary_ == nullptr) return absl::OkStatus();
  CUcontext current = nullptr;
  if (CUresult r = driver_->cuCtxGetCurrent(&current); r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuCtxGetCurrent()");
  }
  if (current == nullptr || current == primary_->context()) {
    return absl::OkStatus();
  }
  CUdevice its = 0;
  if (CUresult r = driver_->cuCtxGetDevice(&its); r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuCtxGetDevice()");
  }
  if (its != device_->cuda_device()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const OwnedEvent point, RecordEvent(driver_, nullptr));
  ASSIGN_OR_RETURN(const CurrentContext entered, Enter());
  CUresult r = driver_->cuStreamWaitEvent(nullptr, point.get().event,
                                          CU_EVENT_WAIT_DEFAULT);
  return r == CUDA_SUCCESS ? absl::OkStatus()
                           : driver_.Error(r, "cuStreamWaitEvent(0)");
}

absl::StatusOr<absl::Span<std::uint8_t>> MemoryCopy::Stage::Next() {
  if (pinned_.has_value()) return pinned_->Next();
  own_.resize(static_cast<std::size_t>(kPiece));
  return absl::MakeSpan(own_);
}

absl::Status MemoryCopy::Stage::Finish() {
  return pinned_.has_value() ? pinned_->Finish() : absl::OkStatus();
}

MemoryCopy::Stage MemoryCopy::MakeStage() const {
  Stage stage;
  if (staging_ != nullptr) stage.pinned_.emplace(*staging_);
  return stage;
}

absl::Status MemoryCopy::WriteStaged(std::uint64_t offset, Stage& stage,
                                     std::uint64_t size) const {
  if (stage.pinned_.has_value()) {
    return stage.pinned_->Write(address_ + offset, size);
  }
  return Write(
      offset, absl::MakeSpan(stage.own_).first(static_cast<std::size_t>(size)));
}

absl::StatusOr<bool> MemoryCopy::DeviceTakesChecksums() const {
  if (primary_ == nullptr) return false;
  ASSIGN_OR_RETURN(const CurrentContext current, Enter());
  const auto kernel = ChecksumKernel::Load(*device_);
  const absl::Status status = kernel.ok() ? kernel->Prepare() : kernel.status();
  if (IsForTheCpu(status)) return false;
  RETURN_IF_ERROR(status);
  return true;
}

absl::StatusOr<std::vector<std::uint32_t>> MemoryCopy::Checksums(
    absl::Span<const Part> parts) const {
  const bool is_empty =
      absl::c_all_of(parts, [](const Part& part) { return part.size == 0; });
  if (primary_ != nullptr && !is_empty) {
    ASSIGN_OR_RETURN(const CurrentContext current, Enter());
    RETURN_IF_ERROR(CheckNotCaptured(driver_, nullptr, "take checksums",
                                     "come again after cuStreamEndCapture()"));
    // What the host has no room for is not for the CPU, which needs it as well.
    ASSIGN_OR_RETURN(const Staging::Piece pinned, staging_->Take());
    auto checksums = ChecksumsByDevice(parts, pinned.bytes());
    if (!IsForTheCpu(checksums.status())) return checksums;
  }
  std::vector<std::uint32_t> checksums;
  checksums.reserve(parts.size());
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(const std::uint32_t crc, ChecksumByCpu(part));
    checksums.push_back(crc);
  }
  return checksums;
}

absl::StatusOr<std::vector<std::uint32_t>> MemoryCopy::ChecksumsByDevice(
    absl::Span<const Part> parts, absl::Span<std::uint8_t> pinned) const {
  ASSIGN_OR_RETURN(const ChecksumKernel kernel, ChecksumKernel::Load(*device_));
  std::vector<AddressSpan> ranges;
  ranges.reserve(parts.size());
  for (const Part& part : parts) {
    ranges.push_back({address_ + part.offset, part.size});
  }
  return kernel.Take(ranges, {reinterpret_cast<std::uint32_t*>(pinned.data()),
                              pinned.size() / sizeof(std::uint32_t)});
}

absl::StatusOr<std::uint32_t> MemoryCopy::ChecksumByCpu(
    const Part& part) const {
  if (on_host_ != nullptr) {
    return Crc32c(
        {on_host_ + part.offset, static_cast<std::size_t>(part.size)});
  }
  std::uint32_t crc = 0;
  if (part.size == 0) return crc;
  Stage stage = MakeStage();
  for (std::uint64_t done = 0; done < part.size;) {
    ASSIGN_OR_RETURN(absl::Span<std::uint8_t> piece, stage.Next());
    piece = piece.first(
        static_cast<std::size_t>(std::min(kPiece, part.size - done)));
    RETURN_IF_ERROR(Read(part.offset + done, piece));
    crc = ExtendCrc32c(crc, piece);
    done += piece.size();
  }
  return crc;
}

absl::Status MemoryCopy::Finish() const {
  if (on_host_ != nullptr) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return absl::OkStatus();
  }
  const RelaxedCapture relaxed(driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, Enter());
  // From pageable memory a copy returns before all of it has arrived, and one
  // between devices at once. All are in this stream.
  CUresult r = driver_->cuStreamSynchronize(nullptr);
  return r == CUDA_SUCCESS ? absl::OkStatus()
                           : driver_.Error(r, "cuStreamSynchronize(0)");
}

}  // namespace vmm::weights
