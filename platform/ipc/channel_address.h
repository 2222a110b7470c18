// Addresses of listeners whose name is chosen, so that both sides know it
// beforehand.
#ifndef VMMSHARE_PLATFORM_IPC_CHANNEL_ADDRESS_H_
#define VMMSHARE_PLATFORM_IPC_CHANNEL_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/ipc/channel.h"

namespace vmm::platform {

// The Listener::address() of a listener bound with the default directory and
// this name. Errors as DefaultChannelDirectory().
absl::StatusOr<std::string> DefaultAddressOf(absl::string_view name);

// Options with which a listener gets this address. INVALID_ARGUMENT for text
// that is no address here: expected is an absolute path on Linux,
// \\.\pipe\vmmshare-NAME on Windows.
absl::StatusOr<ListenerOptions> ListenerAt(absl::string_view address);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_CHANNEL_ADDRESS_H_
