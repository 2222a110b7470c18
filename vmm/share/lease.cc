#include "vmm/share/lease.h"

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

}  // namespace vmm
