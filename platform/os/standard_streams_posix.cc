#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>

#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/standard_streams.h"

namespace vmm::platform {

absl::Status HoldStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest number that is free. In the direction that nobody uses.
    const int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    const int opened = ::open("/dev/null", flags);
    if (opened < 0) return LastError().Of("open(/dev/null)");
    // Another thread's file has the place meanwhile.
    if (opened != fd) ::close(opened);
  }
  return absl::OkStatus();
}

void SurviveBrokenOutputs() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    Check(::signal(signal, SIG_IGN) != SIG_ERR, "a signal cannot be ignored");
  }
  Check(HoldStandardStreams().ok(),
        "no /dev/null for a standard stream that is closed");
}

Written WriteWithoutWaiting(std::FILE* stream, absl::string_view text) {
  // A pipe that can be written to takes this much, and a terminal that was
  // stopped (Ctrl-S) cannot: then neither waits.
  constexpr std::size_t kAtOnce = 4096;
  text = text.substr(0, kAtOnce);
  const timespec at_once{};
  pollfd to = {::fileno(stream), POLLOUT, 0};
  const int ready = ::ppoll(&to, 1, &at_once, nullptr);
  if (ready == 0) return Written::kNotYet;
  // Else it is closed, or its reader is gone.
  if (ready < 0 || (to.revents & POLLOUT) == 0) return Written::kFailed;
  const ssize_t size = ::write(to.fd, text.data(), text.size());
  if (size == static_cast<ssize_t>(text.size())) return Written::kWhole;
  // Another process was faster, and has it not wait (O_NONBLOCK).
  return size < 0 && errno == EAGAIN ? Written::kNotYet : Written::kFailed;
}

}  // namespace vmm::platform
