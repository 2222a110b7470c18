// JobCard: what a rank tells all others before any memory is shared.
//
// Who it is, on which host, with which device, and how its memory can be had:
// for each handle kind the ticket, or why there is none. A rank that cannot
// take part (no driver, no device, no memory) sends a card that says why.
#ifndef VMMSHARE_FABRIC_JOB_CARD_H_
#define VMMSHARE_FABRIC_JOB_CARD_H_

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/job_record.h"
#include "fabric/nvml.h"

namespace vmm::fabric {

// The name of a kind in reports: "fd", "nt", "fabric".
absl::string_view KindName(CUmemAllocationHandleType kind);
// Whether `kind`, which came from a rank, has a name.
bool IsKnownKind(std::uint8_t kind);

// The id of the one refusal that is no fault: a handle of the operating
// system's cannot leave its host.
inline constexpr char kOtherHost[] = "other-host";

// One way in which a rank offers its memory.
struct JobOffer {
  CUmemAllocationHandleType kind = CU_MEM_HANDLE_TYPE_NONE;
  // What a peer opens: text for the own kind of the system, a fabric ticket's
  // bytes. Empty when the kind cannot be used at this rank.
  std::string ticket;
  Refusal refusal;  // Why `ticket` is empty.

  bool usable() const { return !ticket.empty(); }
  friend bool operator==(const JobOffer&, const JobOffer&) = default;
};
inline constexpr std::size_t kMaxOffers = 4;
inline constexpr std::size_t kMaxOfferTicket = 32 << 10;

// A value.
struct JobCard {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;  // Of the job, as this rank knows it.
  std::string host_name;
  // Ranks with the same can pass operating-system handles, if their sockets
  // are visible to each other.
  std::array<std::uint8_t, 16> boot_id{};
  bool host_memory_driver = false;
  Uuid device{};
  std::string device_name;
  // Of the device's NVLink fabric; nothing when NVML does not say.
  struct Domain {
    Uuid cluster{};
    std::uint32_t clique = 0;
    friend bool operator==(const Domain&, const Domain&) = default;
  };
  std::optional<Domain> domain;
  // Of the memory offered: bytes asked for, bytes mapped.
  std::uint64_t requested_size = 0;
  std::uint64_t mapped_size = 0;
  // What the first 16 bytes of trial memory hold.
  std::array<std::uint8_t, 16> nonce{};
  Refusal trouble;  // Why this rank cannot take part.
  std::vector<JobOffer> offers;

  // Null when the rank does not speak of `kind`.
  const JobOffer* Find(CUmemAllocationHandleType kind) const;
  // "rank 3 (host node2, GPU-f0613ff9-...)".
  std::string Describe() const;
  friend bool operator==(const JobCard&, const JobCard&) = default;
};

// `refusal`, with the rank that it is of in front.
Refusal OfRank(const JobCard& card, const Refusal& refusal);

// Why `importer` cannot have the memory of `owner` as `kind`, as far as the
// cards tell; empty when it must be tried.
Refusal RefusedByCards(const JobCard& importer, const JobCard& owner,
                       CUmemAllocationHandleType kind);

Bytes EncodeCard(const JobCard& card);

// Total: takes any bytes. Errors as OpenRecord().
absl::StatusOr<JobCard> DecodeCard(absl::Span<const std::uint8_t> bytes);

// Every rank's card, from a complete round: `records` are by rank.
// FAILED_PRECONDITION names a rank with another version, with a card that is
// another rank's, or that knows of another number of ranks.
absl::StatusOr<std::vector<JobCard>> ReadCards(
    absl::Span<const absl::StatusOr<Bytes>> records);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_JOB_CARD_H_
