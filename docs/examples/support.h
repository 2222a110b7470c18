// What the examples have in common and is not about sharing memory: the
// command line, loading the driver, messages of text, and printing.
#ifndef VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_
#define VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"

namespace examples {

// The words of a command line: flags "--name=value" or "--name", and others.
class CommandLine {
 public:
  // INVALID_ARGUMENT for a flag that is not in `known`. --help prints Help()
  // and ends the program.
  static absl::StatusOr<CommandLine> Parse(
      int argc, char** argv, std::initializer_list<absl::string_view> known);

  bool Has(const std::string& flag) const { return flags_.contains(flag); }
  // The flag's value, or `absent` when it was not given.
  std::string Text(const std::string& flag, absl::string_view absent) const;
  absl::StatusOr<std::uint64_t> Number(const std::string& flag,
                                       std::uint64_t absent) const;
  // Bytes; the value may end in K, M or G.
  absl::StatusOr<std::uint64_t> Bytes(const std::string& flag,
                                      std::uint64_t absent) const;
  // --timeout in seconds, 60 unless given, from now.
  absl::StatusOr<absl::Time> Deadline() const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::map<std::string, std::string> flags_;
  std::vector<std::string> words_;
};

// The comment at the top of the program's source; CMakeLists.txt makes it.
const char* Help();

// The driver that --driver names: "system" (the installed NVIDIA driver, the
// default), "host" (the host-memory driver built beside the examples, or the
// file that $VMMSHARE_HOSTDRIVER names), or the absolute path of a driver.
absl::StatusOr<vmm::platform::Driver> LoadDriver(const CommandLine& line);

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

// The exit status for `status`; prints an error to standard error.
int ExitStatus(absl::string_view program, const absl::Status& status);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_SUPPORT_H_
