// Adds context to a status without losing what travels in it (ResultOf()).
#ifndef VMMSHARE_PLATFORM_BASE_ANNOTATE_H_
#define VMMSHARE_PLATFORM_BASE_ANNOTATE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// `code` and `message`, with what travels in `status`, which is not OK.
inline absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                             absl::string_view message) {
  absl::Status reworded(code, message);
  status.ForEachPayload(
      [&reworded](absl::string_view url, const absl::Cord& payload) {
        reworded.SetPayload(url, payload);
      });
  return reworded;
}

// `status` with "BEFORE: " in front of its message and ". AFTER" behind it,
// each if not empty, and with one full stop between. OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view before,
                             absl::string_view after = "") {
  if (status.ok()) return status;
  const absl::string_view stop =
      absl::EndsWith(status.message(), ".") ? " " : ". ";
  return Reworded(
      status, status.code(),
      absl::StrCat(before, before.empty() ? "" : ": ", status.message(),
                   after.empty() ? "" : stop, after));
}

// `status` as one of `code`. OK stays OK.
inline absl::Status WithCode(const absl::Status& status,
                             absl::StatusCode code) {
  return status.ok() ? status : Reworded(status, code, status.message());
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_ANNOTATE_H_
