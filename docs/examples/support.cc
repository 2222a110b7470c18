#include "docs/examples/support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

ABSL_FLAG(std::string, driver, "system", "system, host, or a driver's path");
ABSL_FLAG(int, device, 0, "the ordinal of the device");
ABSL_FLAG(std::uint64_t, timeout, 60, "seconds for all of it");

namespace examples {

using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Message;

std::vector<std::string> ParseCommandLine(int argc, char** argv) {
  // Abseil's own ends the program with an error.
  if (std::any_of(argv, argv + argc,
                  [](absl::string_view word) { return word == "--help"; })) {
    Print(absl::StripSuffix(Help(), "\n"));
    std::_Exit(std::ferror(stdout) != 0 ? EXIT_FAILURE : EXIT_SUCCESS);
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  return {words.begin() + 1, words.end()};  // Without the program.
}

std::vector<std::string> Flags(std::initializer_list<absl::string_view> names) {
  std::vector<std::string> words;
  for (const absl::string_view name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    words.push_back(absl::StrCat("--", name, "=", flag->CurrentValue()));
  }
  return words;
}

absl::Time Deadline() {
  return absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_timeout));
}

absl::StatusOr<Driver> LoadDriver() {
  const std::string choice = absl::GetFlag(FLAGS_driver);
  if (choice == "system") return Driver::LoadSystem();
  if (choice != "host") return Driver::LoadFrom(choice);
  const char* path = std::getenv("VMMSHARE_HOSTDRIVER");
  const std::string host = path != nullptr ? path : VMMSHARE_HOSTDRIVER_PATH;
  if (host.empty()) {
    return absl::NotFoundError(
        "--driver=host: this build has no host-memory driver; build with "
        "VMMSHARE_BUILD_HOSTDRIVER=ON, or pass --driver=PATH of one");
  }
  return Driver::LoadFrom(host);
}

std::string BytesText(std::uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double scaled = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < std::size(kUnits)) {
    scaled /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", scaled, kUnits[unit]);
}

void Print(absl::string_view text) {
  // One call for the whole line, so that lines of two processes do not mix.
  const std::string line = absl::StrCat(text, "\n");
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

absl::Status Say(Channel& channel, const TextMessage& message,
                 absl::Time deadline) {
  const std::vector<std::uint8_t> payload(message.text.begin(),
                                          message.text.end());
  return channel.Send(message.type, payload, {}, deadline);
}

absl::StatusOr<TextMessage> Hear(Channel& channel, absl::Time deadline) {
  absl::StatusOr<Message> message = channel.Receive(deadline);
  if (!message.ok()) return message.status();
  return TextMessage{message->type,
                     {message->payload.begin(), message->payload.end()}};
}

void Steps::Done(absl::string_view step, std::uint64_t bytes) {
  const absl::Duration took = absl::Now() - last_;
  std::string line = absl::StrFormat("%s: %-40s %10.3f ms", who_, step,
                                     absl::ToDoubleMilliseconds(took));
  if (bytes >= 1 << 20) {
    absl::StrAppendFormat(
        &line, " %8.2f GB/s",
        static_cast<double>(bytes) / absl::ToDoubleNanoseconds(took));
  }
  Print(line);
  last_ = absl::Now();
}

int ExitStatus(absl::string_view program, const absl::Status& result) {
  absl::Status status = result;
  // A file system may be full: a script would take half an output for all.
  if (status.ok() && std::ferror(stdout) != 0) {
    status = absl::DataLossError(
        "not all that was printed could be written to standard output");
  }
  if (status.ok()) return EXIT_SUCCESS;
  const std::string line = absl::StrCat(
      program, ": error: ", absl::StatusCodeToString(status.code()), ": ",
      status.message(), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
  return EXIT_FAILURE;
}

}  // namespace examples
