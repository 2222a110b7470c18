#include "vmm/c/internal/convert.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handles.h"

namespace vmm::c {
namespace {

constexpr std::uint32_t kAllKinds = VMMSHARE_KIND_POSIX_FD |
                                    VMMSHARE_KIND_WIN32 | VMMSHARE_KIND_FABRIC |
                                    VMMSHARE_KIND_LEGACY_IPC;

absl::string_view NameOf(LeaseState state) {
  switch (state) {
    case LeaseState::kHeld:
      return "held";
    case LeaseState::kRecalled:
      return "recalled";
    case LeaseState::kQuarantined:
      return "quarantined";
  }
  return "";
}

// Those that work here, the system's own first.
SharePolicy PolicyOf(HandleKindSet kinds) {
  absl::InlinedVector<HandleKind, 4> wanted;
  for (HandleKind kind : {HandleKind::kPosixFd, HandleKind::kWin32,
                          HandleKind::kFabric, HandleKind::kLegacyIpc}) {
    if (kinds.Has(kind)) wanted.push_back(kind);
  }
  return SharePolicy::AnyOf(wanted);
}

}  // namespace

absl::Status CheckBits(std::uint32_t bits, std::uint32_t known,
                       absl::string_view name) {
  if ((bits & ~known) == 0) return absl::OkStatus();
  if (known == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` is ", bits, ". Give 0."));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` is ", bits, ", of which ", bits & ~known,
                   " is not known. Give bits of ", known, " only."));
}

absl::StatusOr<HandleKind> KindOf(std::uint32_t kind) {
  if (kind == VMMSHARE_KIND_POSIX_FD || kind == VMMSHARE_KIND_WIN32 ||
      kind == VMMSHARE_KIND_FABRIC || kind == VMMSHARE_KIND_LEGACY_IPC ||
      kind == VMMSHARE_KIND_STREAM_POOL) {
    return static_cast<HandleKind>(kind);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "handle kind ", kind, " is none. Give one of VMMSHARE_KIND_*."));
}

absl::StatusOr<Placing> PlacingOf(std::uint32_t kinds, std::uint32_t flags,
                                  std::int32_t numa_node,
                                  const vmmshare_device* const* peers,
                                  std::uint32_t peer_count) {
  RETURN_IF_ERROR(CheckBits(kinds, kAllKinds, "kinds"));
  constexpr std::uint32_t kRdma = VMMSHARE_RDMA_TRY | VMMSHARE_RDMA_REQUIRE;
  RETURN_IF_ERROR(
      CheckBits(flags, VMMSHARE_PRIVATE | VMMSHARE_ON_HOST | kRdma, "flags"));
  if ((flags & kRdma) == kRdma) {
    return absl::InvalidArgumentError(
        "`flags` has VMMSHARE_RDMA_TRY and VMMSHARE_RDMA_REQUIRE. Give one.");
  }
  Placing placing;
  if ((flags & VMMSHARE_RDMA_TRY) != 0) placing.rdma = Rdma::kTry;
  if ((flags & VMMSHARE_RDMA_REQUIRE) != 0) placing.rdma = Rdma::kRequire;
  if ((flags & VMMSHARE_PRIVATE) != 0) {
    placing.sharing = SharePolicy::Private();
  } else if (kinds != 0) {
    placing.sharing = PolicyOf(HandleKindSet::FromBits(kinds));
  }
  if ((flags & VMMSHARE_ON_HOST) != 0) {
    placing.host_numa_node = numa_node;
    placing.also.push_back({Location::HostNuma(numa_node)});
  }
  if (peer_count != 0) RETURN_IF_ERROR(CheckGiven(peers, "peers"));
  for (std::uint32_t i = 0; i < peer_count; ++i) {
    RETURN_IF_ERROR(Check(peers[i]));
    placing.also.push_back({Location::On(peers[i]->device)});
  }
  return placing;
}

absl::StatusOr<ImportOptions> ImportOptionsOf(
    const vmmshare_import_options* options) {
  ASSIGN_OR_RETURN(const vmmshare_import_options given,
                   ReadOptions(options, 32, "vmmshare_import_options"));
  RETURN_IF_ERROR(CheckBits(
      given.flags, VMMSHARE_IMPORT_WRITABLE | VMMSHARE_IMPORT_HOST_ACCESS,
      "flags"));
  ImportOptions import;
  import.alignment = given.alignment;
  if ((given.flags & VMMSHARE_IMPORT_WRITABLE) != 0) {
    import.access = Access::kReadWrite;
  }
  if ((given.flags & VMMSHARE_IMPORT_HOST_ACCESS) != 0) {
    import.host_access = import.access;
  }
  if (given.device_count != 0) {
    RETURN_IF_ERROR(CheckGiven(given.devices, "devices"));
  }
  for (std::uint32_t i = 0; i < given.device_count; ++i) {
    RETURN_IF_ERROR(Check(given.devices[i]));
    import.grants.push_back(
        {Location::On(given.devices[i]->device), import.access});
  }
  return import;
}

absl::StatusOr<Shareable> ShareableOf(const vmmshare_memory* memory) {
  RETURN_IF_ERROR(Check(memory));
  if (const auto* own = std::get_if<Allocation>(&memory->memory)) {
    return own->shareable();
  }
  if (const auto* adopted =
          std::get_if<vmmshare_memory::Adopted>(&memory->memory)) {
    return adopted->memory.shareable();
  }
  return absl::FailedPreconditionError(
      "imported memory cannot be shared again: the driver does not export it. "
      "Pass the owner's ticket on instead.");
}

void AddLease(const Lease& lease, tool::Json* object) {
  using tool::Json;
  (*object)["bytes"] = lease.size;
  (*object)["process"] = lease.holder.pid;
  const absl::Duration held = absl::Now() - lease.since;
  (*object)["milliseconds"] = absl::ToInt64Milliseconds(held);
  (*object)["state"] = NameOf(lease.state);
}

absl::StatusOr<AllocationOptions> AllocationOptionsOf(
    const vmmshare_memory_options* options) {
  RETURN_IF_ERROR(CheckGiven(options, "options"));
  ASSIGN_OR_RETURN(const vmmshare_memory_options given,
                   ReadOptions(options, 56, "vmmshare_memory_options"));
  ASSIGN_OR_RETURN(Placing placing,
                   PlacingOf(given.kinds, given.flags, given.numa_node,
                             given.peers, given.peer_count));
  return AllocationOptions{.size = given.size,
                           .sharing = std::move(placing.sharing),
                           .max_chunk_size = given.max_chunk_size,
                           .alignment = given.alignment,
                           .host_numa_node = placing.host_numa_node,
                           .also = std::move(placing.also),
                           .rdma = placing.rdma};
}

absl::StatusOr<PoolOptions> PoolOptionsOf(
    const vmmshare_pool_options* options) {
  ASSIGN_OR_RETURN(const vmmshare_pool_options given,
                   ReadOptions(options, 56, "vmmshare_pool_options"));
  constexpr std::uint32_t kNullIsPerThread = VMMSHARE_NULL_STREAM_PER_THREAD;
  ASSIGN_OR_RETURN(Placing placing,
                   PlacingOf(given.kinds, given.flags & ~kNullIsPerThread,
                             given.numa_node, given.peers, given.peer_count));
  PoolOptions pool;
  if ((given.flags & kNullIsPerThread) != 0) {
    pool.null_stream = NullStream::kPerThread;
  }
  pool.sharing = std::move(placing.sharing);
  pool.host_numa_node = placing.host_numa_node;
  pool.also = std::move(placing.also);
  pool.rdma = placing.rdma;
  pool.cap = given.cap;
  if (given.first_segment_size != 0) {
    pool.first_segment_size = given.first_segment_size;
  }
  if (given.max_segment_size != 0) {
    pool.max_segment_size = given.max_segment_size;
  }
  return pool;
}

absl::Status ReportLease(const LeaseStatus& lease, std::int64_t* return_in_ns) {
  // It may have been asked back before its owner ended: nobody waits for it now.
  if (lease.connection.ok() && lease.return_by.has_value()) {
    *return_in_ns = NanosecondsOf(*lease.return_by - absl::Now());
  }
  return lease.connection;
}

absl::Status WhyNoLease() {
  return absl::FailedPreconditionError(
      "the memory is this process's own, and no lease. Ask for that of "
      "memory that another process serves and this one opened.");
}

}  // namespace vmm::c
