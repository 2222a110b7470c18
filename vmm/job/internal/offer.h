// Offer: memory of one rank, published to all others, with the card that says
// how each can have it.
#ifndef VMMSHARE_VMM_JOB_INTERNAL_OFFER_H_
#define VMMSHARE_VMM_JOB_INTERNAL_OFFER_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fabric/exchange.h"
#include "fabric/job_card.h"
#include "fabric/topology.h"
#include "platform/os/deadline.h"
#include "vmm/job/handshake.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"

namespace vmm::job {

// The driver's name for a kind, as cards have it.
inline CUmemAllocationHandleType CudaKind(HandleKind kind) {
  return static_cast<CUmemAllocationHandleType>(kind);
}

// As what memory of a job can be shared by `sharing`, each once: cards speak of no
// others.
std::vector<HandleKind> JobKinds(const SharePolicy& sharing);

// What a card or a verdict says of what failed with `status`.
fabric::Refusal Refuse(const absl::Status& status, absl::string_view id,
                       absl::string_view remedy);

// Move-only.
class Offer {
 public:
  // Allocates `size` bytes of `device`, or takes note of why there is no
  // device, and publishes them as every kind of `sharing` that works. Never
  // fails: what does is on the card, for all ranks to learn.
  static Offer Make(const absl::StatusOr<Device>& device, std::uint64_t size,
                    const SharePolicy& sharing,
                    const fabric::Exchange& exchange,
                    const JobOptions& options);

  const fabric::JobCard& card() const { return card_; }
  fabric::JobCard& card() { return card_; }
  // Null when the card has trouble.
  Allocation* memory() { return memory_.has_value() ? &*memory_ : nullptr; }
  Allocation TakeMemory() && { return *std::move(memory_); }

 private:
  // For the card: the memory as `kind`, published, or why it cannot be.
  fabric::JobOffer As(HandleKind kind, const Device& device,
                      const fabric::Topology& topology,
                      const JobOptions& options);
  // Its ticket. REQUIRES: endpoint_, unless it is a fabric handle's.
  absl::StatusOr<std::string> Publish(HandleKind kind);

  // Unpublished before the memory goes.
  std::optional<Allocation> memory_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Share> publication_;
  fabric::JobCard card_;
};

// As fabric::RefusedByCards().
inline fabric::Refusal RefusedByCards(const fabric::JobCard& importer,
                                      const fabric::JobCard& owner,
                                      HandleKind kind) {
  return fabric::RefusedByCards(importer, owner, CudaKind(kind));
}

// Imports and maps memory of `owner`. REQUIRES: RefusedByCards() is empty.
absl::StatusOr<ImportedAllocation> ImportFrom(
    const Device& device, const fabric::JobCard& owner, HandleKind kind,
    const ImportOptions& how, const JobOptions& options, Deadline deadline);

// Why ImportFrom(), or a use of what it mapped, failed with `status`. Does not
// name the two: the caller does. `had_time`: its deadline had not passed before
// it was called; else the owner is not to blame that it did not answer.
fabric::Refusal Explain(const absl::Status& status,
                        const fabric::JobCard& importer,
                        const fabric::JobCard& owner, HandleKind kind,
                        bool had_time = true);

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_INTERNAL_OFFER_H_
