// Allocation: memory that this process created, at an address, to be shared.
//
//   absl::StatusOr<Allocation> weights =
//       Allocation::Create(device, {.size = 1 << 30});
//   if (!weights.ok()) return weights.status();
//   CUdeviceptr p = weights->address();   // use it like any device pointer
//   absl::Status sent =                                      // transfer.h
//       SendAllocation(channel, weights->shareable(), deadline);
//
// The addresses and the memory are this object's; both go back when it is
// destroyed. What a peer has imported, or a descriptor on its way to one,
// keeps the memory alive beyond that. Destroying is not ordered after work on
// any stream: synchronise first, or use a RetireQueue (retire.h).
#ifndef VMMSHARE_VMM_MEMORY_ALLOCATION_H_
#define VMMSHARE_VMM_MEMORY_ALLOCATION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/mapping.h"
#include "vmm/memory/shareable.h"

namespace vmm {

struct AllocationOptions {
  // Bytes. Rounded up to the granularity (2 MiB on current devices).
  std::uint64_t size = 0;
  // How it may be shared. Decided now: a kind cannot be added later. With
  // kLegacyIpc in it the memory is cuMemAlloc()'s where no other kind of the
  // policy works, and only there: driver_block.h says what is weaker then.
  SharePolicy sharing = SharePolicy::Native();
  // Bytes; 0 is no limit. Larger allocations become several chunks in one
  // address range. Few, large chunks are faster: access costs 0.04 ms a chunk
  // (measured). WSL2 needs less than 4 GiB. What the CPU reaches, too, cuMemset*()
  // fills chunk by chunk: over a border it is INVALID_VALUE (measured).
  std::uint64_t max_chunk_size = 0;
  // Bytes, a power of two; 0 is the driver's own.
  std::uint64_t alignment = 0;
  // Where to map it, instead of at addresses of its own; `alignment` is then of
  // no account. Memory of kLegacyIpc cannot be: FAILED_PRECONDITION.
  std::optional<Placement> at = std::nullopt;
  // A NUMA node of the host to allocate on, instead of the device's memory.
  // The device, and the CPU if asked by `also`, map it.
  std::optional<int> host_numa_node = std::nullopt;
  // Who else gets access, set in the same driver call.
  std::vector<AccessGrant> also = {};
  // Whether other devices on PCIe, such as network cards, are to read and write
  // it by themselves (CUDA's gpuDirectRDMACapable).
  Rdma rdma = Rdma::kOff;
};

// Move-only, thread-compatible: const calls from several threads are safe.
class Allocation {
 public:
  // Allocates memory of `device`, maps it, and gives `device` read-write
  // access. Creates no context. On failure nothing stays allocated.
  //   INVALID_ARGUMENT     size 0, chunk limit under the granularity, alignment
  //                        that is no power of two, a NUMA node that is not there,
  //                        an `at` in which it does not fit
  //   FAILED_PRECONDITION  a device of `also` has no peer access (checked
  //                        first)
  //   RESOURCE_EXHAUSTED   does not fit
  //   FAILED_PRECONDITION  Rdma::kRequire, and the device's attribute says no,
  //                        or the driver made memory without the flag, or
  //                        refused it and nothing else: platform::ResultOf()
  //                        says with what
  //   else                 no kind of the policy works here: the first kind's
  //                        reason; all reasons are in the message
  //
  // Of kLegacyIpc it makes the device's primary context if nobody has, zeroes the
  // memory, makes one chunk whatever max_chunk_size says, and returns
  // FAILED_PRECONDITION for what cuMemAlloc() cannot do: memory of the host,
  // access for others (`also`), another alignment than it happens to have.
  static absl::StatusOr<Allocation> Create(const Device& device,
                                           const AllocationOptions& options);

  CUdeviceptr address() const;
  // Bytes that are mapped: the size asked for, rounded up.
  std::uint64_t size() const { return layout_.size; }
  // Bytes that were asked for.
  std::uint64_t requested_size() const { return requested_size_; }
  // The device that it was created with.
  const Device& device() const { return device_; }
  const MemoryId& id() const { return id_; }

  // The kinds as which it can be shared, and why each other kind of the policy
  // was passed over.
  HandleKindSet kinds() const { return kinds_; }
  const std::vector<PassedOver>& passed_over() const { return passed_over_; }

  // What is weaker about it than about memory of cuMemCreate(), for people, and
  // what whoever opens it can reach; empty, and size 0, if it is such memory.
  std::string weakness() const;
  AddressSpan disclosed() const;

  // Whether all of it has CUDA's flag gpuDirectRDMACapable, as the driver says
  // now. Memory of kLegacyIpc has no such flag: false, though a network card may
  // read it where the device's attribute GPU_DIRECT_RDMA_SUPPORTED says yes.
  // FAILED_PRECONDITION when it is discarded.
  absl::StatusOr<bool> IsRdmaCapable() const;
  // With Rdma::kTry, why the memory was made without; otherwise OK.
  const absl::Status& rdma_refusal() const { return rdma_refusal_; }

  // Gives or takes access, all of `grants` in one driver call; see Mapping.
  // FAILED_PRECONDITION when it is not mapped. This and the three below return
  // UNIMPLEMENTED for memory of kLegacyIpc.
  absl::Status SetAccess(absl::Span<const AccessGrant> grants);

  // Unmaps the memory but keeps it, and its address, for Remap(). Peers do not
  // notice. Not ordered after work on any stream. FAILED_PRECONDITION when it
  // is not mapped. When the driver's unmapping fails, the memory counts as
  // unmapped.
  absl::Status Unmap();

  // Unmaps the memory and gives it back; the address stays reserved for
  // Remap(). Peers that imported it keep it alive, and so does a Share
  // made of it before (endpoint.h), until that is withdrawn.
  absl::Status Discard();

  // Maps the memory again at the same address, with the same access. After
  // Discard() that is new memory, with a new generation of the id.
  // FAILED_PRECONDITION when it is mapped.
  absl::Status Remap();

  bool is_mapped() const;

  // What the exporting calls need (transfer.h, endpoint.h).
  // REQUIRES: not discarded.
  Shareable shareable() const;

 private:
  friend class RestorableAllocation;  // restorable.h
  using SharedBlock = std::shared_ptr<const OwnedMadeBlock>;
  using Memory = std::variant<MappedRegion, SharedBlock>;
  Allocation(Device device, Location where, Memory memory, MemoryId id,
             std::uint64_t requested_size, ChunkLayout layout,
             HandleKindSet kinds, std::vector<PassedOver> passed_over,
             std::vector<platform::UserId> users, bool rdma,
             absl::Status rdma_refusal)
      : device_(std::move(device)),
        where_(std::move(where)),
        memory_(std::move(memory)),
        id_(id),
        requested_size_(requested_size),
        layout_(layout),
        kinds_(kinds),
        passed_over_(std::move(passed_over)),
        users_(std::move(users)),
        rdma_(rdma),
        rdma_refusal_(std::move(rdma_refusal)) {}

  const SharedBlock* block() const {
    return std::get_if<SharedBlock>(&memory_);
  }
  // Null, and an error, for memory of kLegacyIpc.
  absl::StatusOr<MappedRegion*> Mapped(absl::string_view call);
  // The same, with memory to map.
  absl::StatusOr<MappedRegion*> MadeAgain();
  // Remap(), but that device() may write until EndFill() succeeds, whatever access
  // it had.
  absl::Status RemapToFill();
  absl::Status EndFill();

  Device device_;
  Location where_;
  Memory memory_;
  MemoryId id_;
  std::uint64_t requested_size_;
  ChunkLayout layout_;
  HandleKindSet kinds_;
  std::vector<PassedOver> passed_over_;
  // For memory made by Remap().
  std::vector<platform::UserId> users_;
  bool rdma_;
  absl::Status rdma_refusal_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_ALLOCATION_H_
