// FencePool and ImportedFencePool: where fences come from.
//
//   // The owner:
//   auto fences = FencePool::Create(device);
//   auto endpoint = Endpoint::Start({});
//   auto served = (*endpoint)->Serve((*fences)->pool());   // once
//   absl::StatusOr<Fence> ready = (*fences)->New();
//   send(EncodeFenceTicket(*(*fences)->Export(*ready)));   // 48 bytes
//   // The peer, which got served->ticket() and the 48 bytes:
//   auto theirs = ImportedFencePool::Subscribe(driver, text, {}, deadline);
//   absl::StatusOr<Fence> ready = (*theirs)->Import(ticket, deadline);
//
// A fence is a block of a vmm::Pool on a NUMA node of the host, where every
// GPU of the machine and every CPU can reach it. So what holds for blocks holds
// for fences: making one calls neither the driver nor the system, nor does
// importing one; the ticket of one that is gone is refused; and one that a peer
// has is not made another before the peer has given it back or its end is proven
// (docs/lifetime.md).
//
// Memory is not given back to the driver before the pool and its last fence
// have gone: a stream may still wait for one that was destroyed.
//
// Peers can write all fences of the pool, not only those that they were sent
// tickets of: processes that must not disturb each other need pools of their
// own.
#ifndef VMMSHARE_VMM_SYNC_FENCE_POOL_H_
#define VMMSHARE_VMM_SYNC_FENCE_POOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/pool/pool.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/sync/fence.h"

namespace vmm {

// Of memory for each fence: the pool's smallest block. So no two fences are in
// one cache line of a CPU (64, or 128 as they are fetched in pairs) or a GPU
// (128), and 100,000 take 24.4 MiB.
inline constexpr std::uint64_t kFenceBytes = 256;

inline constexpr std::size_t kFenceTicketBytes = 48;

// The plain data by which a peer finds a fence: 48 bytes, sent by whatever means
// the program has, for no handle travels with it. A fence is a block of a pool,
// so this is a PoolTicket in other clothes: every field is compared with the
// owner's record of the block, so that a ticket with any bit changed, or one of a
// fence that is gone, is refused. It has a magic of its own: a fence's ticket is
// not taken for a buffer's, nor the other way round. docs/wire_format.md has the
// byte layout.
//
// A value. Default-constructed it is no fence's: DecodeFenceTicket() refuses
// it.
struct FenceTicket {
  DomainId domain;
  std::uint32_t segment = 0;     // From 1.
  std::uint32_t slot = 0;        // Below kPoolSlots.
  std::uint64_t generation = 0;  // From 1; no two fences of a domain have one.
  std::uint64_t offset = 0;      // Into the segment: a multiple of kFenceBytes.

  // For messages: "fence at 512 of segment 2, slot 7.19, domain 01ab...".
  std::string Describe() const;
  friend bool operator==(const FenceTicket&, const FenceTicket&) = default;
};

using FenceTicketBytes = std::array<std::uint8_t, kFenceTicketBytes>;

// Any value, without judging it. Thread-safe; allocates nothing.
FenceTicketBytes EncodeFenceTicket(const FenceTicket& ticket);

// Total. INVALID_ARGUMENT for another size than kFenceTicketBytes, another
// magic, bytes that are not zero where they must be, a segment or generation of
// 0, a slot that is none, and an offset at which no fence can be; UNIMPLEMENTED
// for a newer version. Thread-safe; allocates only to say what is wrong.
absl::StatusOr<FenceTicket> DecodeFenceTicket(
    absl::Span<const std::uint8_t> in);

// The block that a fence is, and back. A value for a value: judges nothing.
PoolTicket BlockOf(const FenceTicket& ticket);
FenceTicket FenceOf(const PoolTicket& block);

struct FencePoolOptions {
  // How the memory can be shared; SharePolicy::Private() for fences between
  // streams and threads of this process alone.
  SharePolicy sharing = SharePolicy::Native();
  // Devices whose streams use the fences, beside the pool's own.
  std::vector<Device> devices = {};
  // How many fences there is room for from the start, 1,048,576 at most. A page of
  // 2 MiB, which is 8,192 fences, is taken at least; with 0 when the first
  // fence is made.
  std::uint64_t room = 1;
  // Where the fences live. Default: the node that is next to the device.
  std::optional<int> host_numa_node = std::nullopt;
};

// A snapshot.
struct FencePoolStatistics {
  std::uint64_t fences = 0;  // That exist here.
  // Gone, but a signal that they put on a stream has not been made yet.
  std::uint64_t waiting = 0;
  std::uint64_t reserved = 0;  // Bytes of memory, in the owner.
};

// Thread-safe. In a forked child it does nothing when destroyed, and nothing
// else may be called there.
class FencePool {
 public:
  // Takes the memory. `device` and its peers need stream memory operations:
  // UNIMPLEMENTED, which says so, where one has none. INVALID_ARGUMENT for more
  // `room` than there may be. Otherwise as Allocation::Create().
  static absl::StatusOr<std::unique_ptr<FencePool>> Create(
      const Device& device, const FencePoolOptions& options = {});

  // Fences may outlive it. REQUIRES: when it and its fences have gone, the GPU
  // has passed all waits and signals of theirs.
  ~FencePool();
  FencePool(const FencePool&) = delete;
  FencePool& operator=(const FencePool&) = delete;

  // A new fence, of value 0. RESOURCE_EXHAUSTED, or as the driver reports, when
  // there is no room and no memory.
  absl::StatusOr<Fence> New();

  // A ticket for `fence`, the same again until that is gone. INVALID_ARGUMENT
  // for one of another pool; FAILED_PRECONDITION for one that was given back,
  // and in a private pool; RESOURCE_EXHAUSTED with 1,048,576 tickets out.
  absl::StatusOr<FenceTicket> Export(const Fence& fence);

  // Makes room, so that `fences` more can be made without the driver.
  // INVALID_ARGUMENT above 1,048,576; else as Pool::Reserve().
  absl::Status Reserve(std::uint64_t fences);

  // For Endpoint::Serve() and its statistics. Allocate nothing from it. Trim()
  // gives memory back that has no fence now: call it only when this process's
  // GPUs have passed all waits of fences that are gone. Peers keep what they
  // have used until their ImportedFencePool goes.
  Pool& pool();
  FencePoolStatistics statistics() const;

 private:
  class Core;
  explicit FencePool(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

struct ImportFencesOptions {
  // Devices whose streams use the fences here. Empty: the one that the pool was
  // created with; FAILED_PRECONDITION when this process does not see that, and
  // UNIMPLEMENTED when any device that it sees lacks stream memory operations.
  std::vector<Device> devices = {};
};

// Thread-safe. In a forked child as FencePool.
class ImportedFencePool {
 public:
  // As ImportedPool::Subscribe(); UNIMPLEMENTED as FencePool::Create().
  static absl::StatusOr<std::unique_ptr<ImportedFencePool>> Subscribe(
      const platform::Driver& driver, absl::string_view ticket,
      const ImportFencesOptions& options, Deadline deadline,
      const platform::PeerPolicy& owners = {});

  // As FencePool. The owner is told when it and its fences have gone.
  ~ImportedFencePool();
  ImportedFencePool(const ImportedFencePool&) = delete;
  ImportedFencePool& operator=(const ImportedFencePool&) = delete;

  // The fence of `ticket`. Waits only if its memory is still on its way. Errors
  // as ImportedPool::Import(); FAILED_PRECONDITION when its memory is a GPU's,
  // where the CPU has no fence (the string of another pool was given), and
  // INVALID_ARGUMENT when its owner only says that it is not; DATA_LOSS when
  // there is no fence.
  absl::StatusOr<Fence> Import(const FenceTicket& ticket, Deadline deadline);

  // OK while the owner serves this process; otherwise why it does not. Fences
  // that are imported go on working.
  absl::Status connection() const;
  FencePoolStatistics statistics() const;

 private:
  class Core;
  explicit ImportedFencePool(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_FENCE_POOL_H_
