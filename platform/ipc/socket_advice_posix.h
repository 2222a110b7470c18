// What to do where a socket's directory does not serve: most that containers do
// to it shows as an error code that says little. Internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_SOCKET_ADVICE_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_SOCKET_ADVICE_POSIX_H_

#include <string>

#include "absl/strings/string_view.h"

namespace vmm::platform {

// For a bind() in `directory` that failed with `code`; "" for most codes.
std::string BindAdvice(int code, const std::string& directory);

// For a socket in `directory` to which nobody answers: that nobody listens, or
// that an overlay hides who does.
std::string NobodyListens(const std::string& directory);

// For a connect() to the socket `address` that failed with EACCES: whose it is and
// whose this process, or who else keeps a user from its own. "" where there is no
// looking at it.
std::string ConnectAdvice(const std::string& address);

// For a file that cannot be looked at by `code`; "" for all but EACCES.
absl::string_view LookAdvice(int code);

// What lets this process and one of another user share.
std::string TwoUsersAdvice();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_SOCKET_ADVICE_POSIX_H_
