// What the examples have in common and is not about sharing memory: the
// command line, loading the driver, messages of text, and printing.
#ifndef VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_
#define VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"

// The flags of every example.
ABSL_DECLARE_FLAG(std::string, driver);
ABSL_DECLARE_FLAG(int, device);
ABSL_DECLARE_FLAG(std::uint64_t, timeout);

namespace examples {

// Sets Abseil's flags, and returns the words that are none. Ends the program: at
// --help, with Help(); at a word that no flag of it understands, with an error.
std::vector<std::string> ParseCommandLine(int argc, char** argv);

// These flags as they are set, "--name=value": what a child is started with.
std::vector<std::string> Flags(std::initializer_list<absl::string_view> names);

// When --timeout is over, from now.
absl::Time Deadline();

// The comment at the top of the program's source; CMakeLists.txt makes it.
const char* Help();

// The driver that --driver names: "system" (the installed NVIDIA driver, the
// default), "host" (the host-memory driver built beside the examples, or the
// file that $VMMSHARE_HOSTDRIVER names), or the absolute path of a driver.
absl::StatusOr<vmm::platform::Driver> LoadDriver();

// "64.0 MiB".
std::string BytesText(std::uint64_t bytes);

// Prints one line and flushes: several processes write to one terminal.
void Print(absl::string_view text);

// A message of text, over a channel.
struct TextMessage {
  std::uint16_t type = 0;
  std::string text;
};
absl::Status Say(vmm::platform::Channel& channel, const TextMessage& message,
                 absl::Time deadline);
absl::StatusOr<TextMessage> Hear(vmm::platform::Channel& channel,
                                 absl::Time deadline);

// Prints what this process is doing, with the time since the last step.
class Steps {
 public:
  explicit Steps(std::string who) : who_(std::move(who)), last_(absl::Now()) {}
  // The step that ends now; `bytes`, if many, adds the rate.
  void Done(absl::string_view step, std::uint64_t bytes = 0);

 private:
  std::string who_;
  absl::Time last_;
};

// The exit status for `result`, and for an output that could not be written;
// prints an error to standard error.
int ExitStatus(absl::string_view program, const absl::Status& result);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_
