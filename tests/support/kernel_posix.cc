#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/kernel.h"

namespace vmm::testing {

bool KernelNamesSenders() {
  constexpr int kSoPassPidfd = 76;
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const int on = 1;
  const bool does =
      ::setsockopt(socket, SOL_SOCKET, kSoPassPidfd, &on, sizeof(on)) == 0;
  ::close(socket);
  return does;
}

}  // namespace vmm::testing
