#include "vmm/share/internal/lease_text.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace vmm::lease_internal {

void SetState(Lease& lease, bool hung_up, platform::PeerEnd end,
              const platform::PeerWatch& watch) {
  const bool has_ended = end == platform::PeerEnd::kUnproven;
  if (!has_ended && !hung_up) {
    lease.state =
        lease.return_by.has_value() ? LeaseState::kRecalled : LeaseState::kHeld;
    return;
  }
  lease.state = LeaseState::kQuarantined;
  lease.reason =
      has_ended ? absl::StrCat("whose process has ended, but ", watch.why())
                : "which hung up and is not known to have ended";
}

std::string DescribeAll(absl::Span<const std::string> leases) {
  constexpr std::size_t kNamed = 3;
  std::string text = absl::StrCat(
      leases.size(), leases.size() == 1 ? " lease is" : " leases are",
      " not returned: ");
  for (std::size_t i = 0; i < leases.size() && i < kNamed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", leases[i]);
  }
  if (leases.size() > kNamed) {
    absl::StrAppend(&text, "; and ", leases.size() - kNamed, " more");
  }
  return text;
}

}  // namespace vmm::lease_internal
