#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel_address.h"

namespace vmm::platform {

absl::StatusOr<std::string> DefaultAddressOf(absl::string_view name) {
  ASSIGN_OR_RETURN(const std::string directory, DefaultChannelDirectory());
  return absl::StrCat(directory, "/", name);
}

absl::StatusOr<ListenerOptions> ListenerAt(absl::string_view address) {
  const std::size_t slash = address.rfind('/');
  if (address.empty() || address[0] != '/' || slash + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", address, "\" is no address; expected an absolute path"));
  }
  return ListenerOptions{
      .directory = std::string(slash == 0 ? "/" : address.substr(0, slash)),
      .name = std::string(address.substr(slash + 1))};
}

}  // namespace vmm::platform
