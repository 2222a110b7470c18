// Adds context to a status without losing what travels in it (ResultOf()).
#ifndef VMMSHARE_PLATFORM_BASE_ANNOTATE_H_
#define VMMSHARE_PLATFORM_BASE_ANNOTATE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// `status` with "BEFORE: " in front of its message and ". AFTER" behind it,
// each if not empty, and with one full stop between. OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view before,
                             absl::string_view after = "") {
  if (status.ok()) return status;
  const absl::string_view stop =
      absl::EndsWith(status.message(), ".") ? " " : ". ";
  absl::Status annotated(
      status.code(),
      absl::StrCat(before, before.empty() ? "" : ": ", status.message(),
                   after.empty() ? "" : stop, after));
  status.ForEachPayload(
      [&annotated](absl::string_view url, const absl::Cord& payload) {
        annotated.SetPayload(url, payload);
      });
  return annotated;
}

// `status` as one of `code`. OK stays OK.
inline absl::Status WithCode(const absl::Status& status,
                             absl::StatusCode code) {
  if (status.ok()) return status;
  absl::Status recoded(code, status.message());
  status.ForEachPayload(
      [&recoded](absl::string_view url, const absl::Cord& payload) {
        recoded.SetPayload(url, payload);
      });
  return recoded;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_ANNOTATE_H_
