#include "vmm/memory/handle_kind.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "platform/base/check.h"
#include "platform/os/os_handle.h"

namespace vmm {

absl::string_view NameOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::kPosixFd:
      return "POSIX fd";
    case HandleKind::kWin32:
      return "NT handle";
    case HandleKind::kFabric:
      return "fabric handle";
    case HandleKind::kLegacyIpc:
      return "legacy IPC handle";
    case HandleKind::kStreamPool:
      return "stream-ordered pool's handle";
  }
  return "unknown handle kind";
}

std::string HandleKindSet::ToString() const {
  std::vector<absl::string_view> names;
  for (HandleKind kind :
       {HandleKind::kPosixFd, HandleKind::kWin32, HandleKind::kFabric,
        HandleKind::kLegacyIpc, HandleKind::kStreamPool}) {
    if (Has(kind)) names.push_back(NameOf(kind));
  }
  return names.empty() ? "none" : absl::StrJoin(names, " + ");
}

SharePolicy SharePolicy::Require(HandleKind kind) {
  return SharePolicy(absl::MakeConstSpan(&kind, 1));
}

SharePolicy SharePolicy::AnyOf(absl::Span<const HandleKind> kinds) {
  platform::Check(!kinds.empty(),
                  "SharePolicy::AnyOf needs at least one handle kind; memory "
                  "that is never shared is SharePolicy::Private()");
  return SharePolicy(kinds);
}

SharePolicy SharePolicy::Native() {
  return Require(platform::kNativeHandleIsPosixFd ? HandleKind::kPosixFd
                                                  : HandleKind::kWin32);
}

SharePolicy SharePolicy::Private() { return SharePolicy({}); }

}  // namespace vmm
