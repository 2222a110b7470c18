#include "vmm/pool/pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/kind_choice.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/pools_of_process.h"

namespace vmm {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

absl::Status CheckSizes(const PoolOptions& options) {
  const std::uint64_t first = options.first_segment_size;
  const std::uint64_t max = options.max_segment_size;
  if (first < kGranule || first % kGranule != 0 || max % kGranule != 0 ||
      first > max || max > pool::OffsetHeap::kMaxSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("segments of ", first, " to ", max,
                     " bytes were asked for; expected multiples of ", kGranule,
                     ", the first not above the largest, and that not above ",
                     pool::OffsetHeap::kMaxSize));
  }
  if (options.cap != 0 && options.cap < kGranule) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cap of ", options.cap,
                     " bytes has no room for a segment; expected 0 for none, "
                     "or at least ",
                     kGranule));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pool>> Pool::Create(const Device& device,
                                                   const PoolOptions& options) {
  RETURN_IF_ERROR(CheckSizes(options));
  const Location where = options.host_numa_node.has_value()
                             ? Location::HostNuma(*options.host_numa_node)
                             : Location::On(device);
  RETURN_IF_ERROR(CheckReachable(where, options.also));
  const RelaxedCapture relaxed(device.driver());
  // Tried now, so that a share that cannot work is known before there is
  // anything to be shared.
  ASSIGN_OR_RETURN(const KindChoice choice,
                   ChooseKinds(device, options.sharing));
  std::uint64_t unit = pool::Range::kUnit;
  if (!choice.kinds.Has(HandleKind::kLegacyIpc)) {
    ASSIGN_OR_RETURN(
        const std::uint64_t granularity,
        PhysicalMemory::Granularity(device.driver(), where, choice.kinds));
    unit = std::max(unit, granularity);
  }
  auto core = std::make_shared<pool::Core>(device, options, unit);
  pool::PoolsOfProcess::Get().Add(core);
  return std::unique_ptr<Pool>(new Pool(std::move(core)));
}

Pool::Pool(std::shared_ptr<pool::Core> core) : core_(std::move(core)) {}

Pool::~Pool() {
  if (made_.is_still_here()) {
    core_->Close();
    return;
  }
  // The memory, the peers' connections and the threads are the parent's, and
  // what those were changing may be half changed.
  platform::Abandon(std::move(core_));
}

absl::StatusOr<CUdeviceptr> Pool::Allocate(std::uint64_t size, CUstream stream,
                                           const BlockOptions& options) {
  return core_->Allocate(size, stream, options);
}

absl::Status Pool::Free(CUdeviceptr block, CUstream stream) {
  return core_->Free(block, stream);
}

absl::StatusOr<PoolTicket> Pool::Export(CUdeviceptr block) {
  PoolTicket ticket;
  RETURN_IF_ERROR(core_->Export(absl::MakeConstSpan(&block, 1), &ticket));
  return ticket;
}

absl::StatusOr<std::vector<PoolTicket>> Pool::ExportAll(
    absl::Span<const CUdeviceptr> blocks) {
  std::vector<PoolTicket> tickets(blocks.size());
  RETURN_IF_ERROR(core_->Export(blocks, tickets.data()));
  return tickets;
}

absl::StatusOr<PoolBlock> Pool::Find(CUdeviceptr inside) const {
  const std::optional<PoolBlock> found = core_->Find(inside);
  if (found.has_value()) return *found;
  return absl::NotFoundError(absl::StrCat(
      "0x", absl::Hex(inside),
      " is in no live block of this pool; it was freed, or is other memory"));
}

absl::StatusOr<ExportedBlock> ExportAround(CUdeviceptr inside) {
  if (pool::PoolsOfProcess::AreOfParentAlone()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the block around 0x", absl::Hex(inside),
        " was asked for in a forked child, where the parent's pools cannot be "
        "used. Make what the child needs in the child, or start it by exec(), "
        "as multiprocessing's spawn does."));
  }
  return pool::PoolsOfProcess::Get().ExportAround(inside);
}

std::vector<BlockLease> Pool::Leases() const { return core_->Leases(); }

absl::Status Pool::Recall(absl::Span<const CUdeviceptr> blocks,
                          absl::Time until) {
  return core_->Recall(blocks, until);
}

void Pool::RecallAll(absl::Time until) { core_->RecallAll(until); }

absl::Status Pool::WaitUntilReturned(absl::Span<const CUdeviceptr> blocks,
                                     Deadline deadline) const {
  return core_->WaitUntilReturned(blocks, deadline);
}

absl::Status Pool::WaitUntilAllReturned(Deadline deadline) const {
  return core_->WaitUntilAllReturned(deadline);
}

SharingDomain Pool::NewDomain() { return core_->NewDomain(); }

absl::Status Pool::Reserve(std::uint64_t bytes, CUstream stream,
                           SharingDomain domain) {
  return core_->Reserve(bytes, stream, domain);
}

absl::StatusOr<std::uint64_t> Pool::Trim(std::uint64_t keep_bytes) {
  return core_->Trim(keep_bytes);
}

absl::Status Pool::ReleaseStream(CUstream stream, Deadline deadline) {
  return core_->ReleaseStream(stream, deadline);
}

absl::Status Pool::Order(CUstream first, CUstream then, Deadline deadline) {
  return core_->Order(first, then, deadline);
}

PoolStatistics Pool::statistics() const { return core_->statistics(); }

absl::Status Pool::rdma_refusal() const { return core_->rdma_refusal(); }

std::string Pool::weakness() const { return core_->weakness(); }

absl::Status Pool::CheckInvariants() const { return core_->CheckInvariants(); }

const Device& Pool::device() const { return core_->device(); }

}  // namespace vmm
