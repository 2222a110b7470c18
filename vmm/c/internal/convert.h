// From the structures of the C interface to those of the C++ one.
#ifndef VMMSHARE_VMM_C_INTERNAL_CONVERT_H_
#define VMMSHARE_VMM_C_INTERNAL_CONVERT_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "vmm/c/memory.h"
#include "vmm/c/pool.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/shareable.h"
#include "vmm/pool/pool.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/lease.h"
#include "vmm/tool/json.h"

namespace vmm::c {

inline absl::Span<const CUdeviceptr> Pointers(const std::uint64_t* addresses,
                                              std::size_t count) {
  static_assert(sizeof(CUdeviceptr) == sizeof(std::uint64_t));
  return absl::MakeConstSpan(reinterpret_cast<const CUdeviceptr*>(addresses),
                             count);
}

inline CUstream StreamOf(void* stream) { return static_cast<CUstream>(stream); }

// INVALID_ARGUMENT when `bits`, the field or argument `name`, has others than
// `known`.
absl::Status CheckBits(std::uint32_t bits, std::uint32_t known,
                       absl::string_view name);

// INVALID_ARGUMENT unless `kind` is one of VMMSHARE_KIND_*.
absl::StatusOr<HandleKind> KindOf(std::uint32_t kind);

// What `kinds`, `flags`, `numa_node` and `peers` say, in the options of memory
// and in those of pools.
struct Placing {
  SharePolicy sharing = SharePolicy::Native();
  std::optional<int> host_numa_node;
  std::vector<AccessGrant> also;
  Rdma rdma = Rdma::kOff;
};
absl::StatusOr<Placing> PlacingOf(std::uint32_t kinds, std::uint32_t flags,
                                  std::int32_t numa_node,
                                  const vmmshare_device* const* peers,
                                  std::uint32_t peer_count);

absl::StatusOr<AllocationOptions> AllocationOptionsOf(
    const vmmshare_memory_options* options);

absl::StatusOr<PoolOptions> PoolOptionsOf(const vmmshare_pool_options* options);

absl::StatusOr<ImportOptions> ImportOptionsOf(
    const vmmshare_import_options* options);

// What can be exported of `memory`; FAILED_PRECONDITION for imported memory, and
// as Check().
absl::StatusOr<Shareable> ShareableOf(const vmmshare_memory* memory);

// Adds what is known of `lease` to `object`.
void AddLease(const Lease& lease, tool::Json* object);

// `*return_in_ns`, and the status of the connection, as vmmshare_memory_lease()
// has them.
absl::Status ReportLease(const LeaseStatus& lease, std::int64_t* return_in_ns);
// FAILED_PRECONDITION: of memory that this process made there is no lease.
absl::Status WhyNoLease();

}  // namespace vmm::c

#endif  // VMMSHARE_VMM_C_INTERNAL_CONVERT_H_
