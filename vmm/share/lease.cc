#include "vmm/share/lease.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace vmm {

std::string Lease::Describe() const {
  const absl::Time now = absl::Now();
  std::string text = absl::StrCat(
      size, " bytes, ",
      holder.pid == 0 ? std::string("a process of another namespace")
                      : absl::StrCat("process ", holder.pid),
      " of user ", holder.user.text(), ", for ",
      absl::FormatDuration(absl::Trunc(now - since, absl::Milliseconds(1))));
  if (state == LeaseState::kQuarantined) {
    absl::StrAppend(&text, ", ", reason);
  } else if (return_by.has_value()) {
    const absl::Duration left = *return_by - now;
    absl::StrAppend(&text,
                    left > absl::ZeroDuration() ? ", asked back within "
                                                : ", asked back, late by ",
                    absl::FormatDuration(absl::Trunc(absl::AbsDuration(left),
                                                     absl::Milliseconds(1))));
  }
  return text;
}

namespace lease_internal {

void Quarantine(Lease& lease, bool hung_up, platform::PeerEnd end,
                const platform::PeerWatch& watch) {
  if (end == platform::PeerEnd::kUnproven) {
    lease.reason = absl::StrCat("whose process has ended, but ", watch.why());
  } else if (hung_up) {
    lease.reason = "which hung up and is not known to have ended";
  } else {
    return;
  }
  lease.state = LeaseState::kQuarantined;
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

}  // namespace lease_internal
}  // namespace vmm
