// DriverBlock: memory of the driver's own allocators, which is not
// cuMemCreate()'s: cuMemAlloc()'s (cudaMalloc(), and so PyTorch's and CuPy's by
// default), and cuMemAllocAsync()'s of a pool that was made exportable.
//
// It can be shared only in the driver's older ways, which are weaker than VMM:
//
//   - Nothing here holds the memory. Its owner must not free it before all who
//     opened it have closed it; what they see after that is undefined (580 keeps
//     it until then, measured).
//   - cuMemAlloc() puts small allocations side by side into blocks of 2 MiB, and
//     who opens a handle of one reaches all of them (measured).
//   - Whoever opens it may write to it. There is no mapping for reading alone, at
//     addresses of one's choice, or on a device whose owner is not seen.
//   - A process has it mapped once on a device, at one address for all who opened
//     it there.
//
// So a program has to say that it accepts a weaker kind, where memory is adopted
// (AdoptOptions::accept).
#ifndef VMMSHARE_VMM_MEMORY_DRIVER_BLOCK_H_
#define VMMSHARE_VMM_MEMORY_DRIVER_BLOCK_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

// `size` bytes from `base` on.
struct AddressSpan {
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  friend bool operator==(const AddressSpan&, const AddressSpan&) = default;
};

// One allocation. A value, which holds nothing.
struct DriverBlock {
  HandleKind kind = HandleKind::kLegacyIpc;  // As which it can be shared.
  AddressSpan span;                          // As it was asked for.
  // The driver's for this allocation and no other of the process: an address is
  // used again.
  std::uint64_t number = 0;
  // In which it was made; null for kStreamPool.
  CUcontext context = nullptr;
  // Of kStreamPool.
  CUmemoryPool pool = nullptr;

  // What whoever opens it can reach: whole blocks of 2 MiB of the driver's. Of
  // kStreamPool the driver tells no bounds, and this is `span`.
  AddressSpan Disclosed() const;
};

// What is weaker than VMM's about memory of `span` that is shared as `kind`, for
// people. Empty for a VMM kind.
std::string DescribeWeakness(HandleKind kind, AddressSpan disclosed);
// The same of several blocks, of a pool for instance. Empty of none.
std::string DescribeWeakness(HandleKind kind,
                             absl::Span<const AddressSpan> disclosed);

// Other allocations of this process within `block.Disclosed()`, by address. Asks
// the driver for each 256 bytes of it: some ms.
absl::StatusOr<std::vector<AddressSpan>> Neighbours(
    const platform::Driver& driver, const DriverBlock& block);

// FAILED_PRECONDITION when `block` was freed since BlockAt(), whatever lies at its
// address by now. On any thread.
absl::Status CheckIsStillThere(const platform::Driver& driver,
                               const DriverBlock& block);

// The handle of `block`. FAILED_PRECONDITION when it was freed meanwhile;
// otherwise as the driver answers.
absl::StatusOr<ExportedHandle> ExportBlock(const platform::Driver& driver,
                                           const DriverBlock& block);

// What the driver says of the allocation that holds `pointer`. REQUIRES: it is
// memory that can be shared as `kind` (adopted_memory.h).
absl::StatusOr<DriverBlock> BlockAt(const platform::Driver& driver,
                                    CUdeviceptr pointer, HandleKind kind);

// A block of cuMemAlloc() that vmmshare made.
struct MadeBlock {
  std::optional<platform::Driver> driver;
  std::shared_ptr<const PrimaryContext> context;
  DriverBlock block;
};

struct MadeBlockTraits {
  using Value = MadeBlock;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.block.span.size != 0; }
  // Waits for the work in its context, as cuMemFree() does. A failure is reported.
  static void Close(const Value& value);
};

using OwnedMadeBlock = platform::Owned<MadeBlockTraits>;

// Makes one of at least `size` bytes in the primary context of `device`, which is
// made if nobody has. Of whole blocks of 2 MiB, so that whoever opens it reaches
// nothing else, and zeroed, so that nobody reads what was there before. Errors as
// the driver answers. REQUIRES: size is not 0.
absl::StatusOr<OwnedMadeBlock> MakeBlock(const Device& device,
                                         std::uint64_t size);

// A block that another process made, opened here.
struct OpenBlock {
  std::optional<platform::Driver> driver;
  std::shared_ptr<const PrimaryContext> context;
  HandleKind kind = HandleKind::kLegacyIpc;
  AddressSpan span;
};

struct OpenBlockTraits {
  using Value = OpenBlock;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.span.size != 0; }
  // Of kLegacyIpc, waits for the work in its context. A failure is reported.
  static void Close(const Value& value);
};

// Open as often as it was opened: the driver counts legacy IPC's (measured), and
// this process those of pools, which the driver does not (measured).
using OwnedOpenBlock = platform::Owned<OpenBlockTraits>;

// Opens the block of `size` bytes that `handle` stands for, for `device`, in its
// primary context, which is made if nobody has. `owner` is where it lives.
//   INVALID_ARGUMENT     not a block of `size` bytes; a handle of another kind
//   FAILED_PRECONDITION  this process made it, which cannot open it
//   else                 as the driver answers
absl::StatusOr<OwnedOpenBlock> OpenSharedBlock(const Device& device,
                                               const Device& owner,
                                               HandleKind kind,
                                               const ExportedHandle& handle,
                                               std::uint64_t size);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_DRIVER_BLOCK_H_
