#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "platform/ipc/channel_address.h"

namespace vmm::platform {
namespace {

constexpr char kBefore[] = "\\\\.\\pipe\\vmmshare-";

}  // namespace

absl::StatusOr<std::string> DefaultAddressOf(absl::string_view name) {
  return absl::StrCat(kBefore, name);
}

absl::StatusOr<ListenerOptions> ListenerAt(absl::string_view address) {
  absl::string_view name = address;
  if (!absl::ConsumePrefix(&name, kBefore) || name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", address, "\" is no address; expected ", kBefore, "NAME"));
  }
  return ListenerOptions{.name = std::string(name)};
}

}  // namespace vmm::platform
