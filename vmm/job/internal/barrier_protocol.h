// What rank 0 of a barrier and the others say to each other; internal to vmm/.
// docs/wire_format.md has the byte tables.
//
//   rank 0                                   another rank
//   kBarrierOffer  ranks, fences, pool
//                                            kBarrierJoined, or
//                                            protocol::kRefused
//   kBarrierGone   somebody else has ended or left
//   kBarrierBye    either side: it has left, and its GPU has passed. After rank
//                  0's, kBarrierGone may follow
//
// After kBarrierOffer, and after kBarrierJoined, comes the sender's lifeline.
#ifndef VMMSHARE_VMM_JOB_INTERNAL_BARRIER_PROTOCOL_H_
#define VMMSHARE_VMM_JOB_INTERNAL_BARRIER_PROTOCOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::barrier {

enum MessageType : std::uint16_t {
  kBarrierOffer = 0xF030,
  kBarrierJoined = 0xF031,
  kBarrierGone = 0xF032,
  kBarrierBye = 0xF033,
};

struct Offer {
  std::uint32_t rank = 0;           // Of who receives it: from 1.
  std::string pool;                 // Share::ticket() of the fences.
  std::vector<FenceTicket> fences;  // One a rank.
};

std::vector<std::uint8_t> EncodeOffer(const Offer& offer);
// Total: DATA_LOSS for bytes that are none; UNIMPLEMENTED for a newer version.
absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> in);

struct Gone {
  std::uint32_t rank = 0;
  bool left = false;  // In order; else it has ended, or hung up.
};

std::vector<std::uint8_t> EncodeGone(const Gone& gone);
// Total: DATA_LOSS, also for a rank that is not below `size`.
absl::StatusOr<Gone> DecodeGone(absl::Span<const std::uint8_t> in,
                                std::size_t size);

}  // namespace vmm::barrier

#endif  // VMMSHARE_VMM_JOB_INTERNAL_BARRIER_PROTOCOL_H_
