#include "vmm/memory/internal/kind_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "vmm/memory/internal/exporter.h"

namespace vmm {
namespace {

constexpr absl::string_view kOrLegacy =
    "Or accept legacy CUDA IPC, which is weaker (docs/any_memory.md): name "
    "HandleKind::kLegacyIpc too, in C VMMSHARE_KIND_LEGACY_IPC, in Python "
    "legacy=True";

absl::Status NoneWorks(const SharePolicy& policy,
                       const std::vector<PassedOver>& passed_over) {
  absl::Status none =
      platform::Annotate(passed_over.front().reason,
                         "none of the handle kinds asked for can be used here");
  for (std::size_t i = 1; i < passed_over.size(); ++i) {
    none = platform::Annotate(none, "", passed_over[i].reason.message());
  }
  const absl::Span<const HandleKind> kinds = policy.kinds();
  const auto names = [&](HandleKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  const bool or_legacy = names(SharePolicy::Native().kinds().front()) &&
                         !names(HandleKind::kLegacyIpc);
  return platform::Annotate(none, "", or_legacy ? kOrLegacy : "");
}

}  // namespace

absl::StatusOr<KindChoice> ChooseKinds(const Device& device,
                                       const SharePolicy& policy) {
  KindChoice choice;
  const auto take = [&](HandleKind kind) {
    absl::Status usable = device.Probe(kind);
    if (usable.ok()) {
      choice.kinds.Add(kind);
    } else {
      choice.passed_over.push_back({kind, std::move(usable)});
    }
  };
  bool legacy = false;
  for (HandleKind kind : policy.kinds()) {
    legacy = legacy || kind == HandleKind::kLegacyIpc;
    if (kind != HandleKind::kLegacyIpc) take(kind);
  }
  if (choice.kinds.empty()) {
    // Nothing is settled by what passes: neither that legacy IPC is all that
    // there is, nor that nothing is.
    for (const PassedOver& each : choice.passed_over) {
      if (MayPass(each.reason)) return each.reason;
    }
  }
  if (legacy && choice.kinds.empty()) {
    take(HandleKind::kLegacyIpc);
  } else if (legacy) {
    choice.passed_over.push_back(
        {HandleKind::kLegacyIpc,
         absl::FailedPreconditionError(absl::StrCat(
             "memory of cuMemCreate(), which can be shared here as ",
             choice.kinds.ToString(),
             ", has no legacy IPC handle, and is the stronger of the two"))});
  }
  if (choice.kinds.empty() && !policy.kinds().empty()) {
    return NoneWorks(policy, choice.passed_over);
  }
  return choice;
}

}  // namespace vmm
