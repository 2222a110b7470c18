// MemoryCopy: bytes between the host and memory of the driver's; internal to
// vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_MEMORY_COPY_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_MEMORY_COPY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/weights/internal/piece_kernel.h"
#include "vmm/weights/internal/staging.h"

namespace vmm::weights {

// Memory that the CPU may access is copied by the CPU; other memory by the driver,
// in the primary context of the device that maps it, which is made if nobody has.
// The memory is the caller's and outlives this. Const calls are thread-safe for
// disjoint bytes.
class MemoryCopy {
 public:
  // FAILED_PRECONDITION for memory that is not cuMemCreate()'s, or that no device
  // maps while no context is current; INVALID_ARGUMENT when `size` bytes leave the
  // range that is reserved around it.
  static absl::StatusOr<MemoryCopy> Open(const platform::Driver& driver,
                                         CUdeviceptr address,
                                         std::uint64_t size, Access access);

  const platform::Driver& driver() const { return driver_; }
  CUdeviceptr address() const { return address_; }
  std::uint64_t size() const { return size_; }
  // For the CPU; null where it may not.
  std::uint8_t* on_host() const { return on_host_; }

  // The context in which it is copied.
  absl::StatusOr<CurrentContext> Enter() const;

  // REQUIRES: within the memory.
  absl::Status Write(std::uint64_t offset,
                     absl::Span<const std::uint8_t> bytes) const;
  absl::Status Read(std::uint64_t offset, absl::Span<std::uint8_t> bytes) const;
  // A program may have a context of its own of the device, beside the primary one,
  // and current here: then what is put on the default stream of the primary one from
  // now on comes after what is on that one's. FAILED_PRECONDITION while that one is
  // captured.
  absl::Status ComeAfterCurrentContext() const;
  // From any memory that the driver knows, and as ComeAfterCurrentContext().
  // FAILED_PRECONDITION when no context would do it.
  absl::Status WriteFrom(std::uint64_t offset, CUdeviceptr from,
                         std::uint64_t size) const;
  // The same of many, put on `stream` of the device's primary context, null for
  // its default one, which alone is as ComeAfterCurrentContext(); in no order among
  // them: by a kernel where they are the device's own and the driver is of CUDA 12.1
  // or newer. Of memory of the host they have been made when it returns. REQUIRES:
  // none is of 0 bytes; with `are_own` all are the device's own.
  absl::Status WriteAllFrom(absl::Span<const DevicePiece> copies,
                            CUstream stream, bool are_own) const;
  // Where bytes of the host's own are put that are written next.
  class Stage {
   public:
    // kPiece bytes, which may be filled: once what was written from there has been
    // read. Fails as StagedWrites::Next() does.
    absl::StatusOr<absl::Span<std::uint8_t>> Next();
    // Returns when all that was written by it is there.
    absl::Status Finish();

   private:
    friend class MemoryCopy;
    std::optional<StagedWrites> pinned_;
    std::vector<std::uint8_t> own_;  // Where nothing can be pinned for it.
  };
  // Of one thread, which this outlives.
  Stage MakeStage() const;
  // The first `size` bytes of what Next() returned; maybe not there before the
  // stage's Finish().
  absl::Status WriteStaged(std::uint64_t offset, Stage& stage,
                           std::uint64_t size) const;
  // The CRC-32C of each: by a kernel where a device has the memory and has room for
  // that, else by the CPU. REQUIRES: within the memory, and nothing is being written
  // there.
  struct Part {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  absl::StatusOr<std::vector<std::uint32_t>> Checksums(
      absl::Span<const Part> parts) const;
  // Whether the device takes checksums: then nobody else need to. Loads what it takes.
  absl::StatusOr<bool> DeviceTakesChecksums() const;
  // Returns when all that was written is there for every process and device.
  absl::Status Finish() const;

 private:
  MemoryCopy(platform::Driver driver, CUdeviceptr address, std::uint64_t size)
      : driver_(std::move(driver)), address_(address), size_(size) {}
  // REQUIRES: the context is current.
  absl::StatusOr<std::vector<std::uint32_t>> ChecksumsByDevice(
      absl::Span<const Part> parts, absl::Span<std::uint8_t> pinned) const;
  absl::StatusOr<std::uint32_t> ChecksumByCpu(const Part& part) const;
  absl::Status CopyOnDevice(absl::Span<const DevicePiece> copies,
                            CUstream stream, bool are_own) const;

  platform::Driver driver_;
  CUdeviceptr address_;
  std::uint64_t size_;
  std::uint8_t* on_host_ = nullptr;
  std::optional<Device> device_;
  std::shared_ptr<const PrimaryContext> primary_;  // Of it. Else
  CUcontext context_ = nullptr;                    // this one.
  std::shared_ptr<Staging> staging_;               // With a primary context.
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_MEMORY_COPY_H_
