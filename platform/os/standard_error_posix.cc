#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <ctime>

#include "platform/os/standard_error.h"

namespace vmm::platform {

bool WriteErrorWithoutWaiting(absl::string_view text) {
  // A pipe that can be written to takes this much, and a terminal that was
  // stopped (Ctrl-S) cannot: then neither waits.
  constexpr std::size_t kAtOnce = 4096;
  text = text.substr(0, kAtOnce);
  const timespec at_once{};
  pollfd to = {STDERR_FILENO, POLLOUT, 0};
  if (::ppoll(&to, 1, &at_once, nullptr) != 1 || (to.revents & POLLOUT) == 0) {
    return false;
  }
  return ::write(STDERR_FILENO, text.data(), text.size()) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace vmm::platform
