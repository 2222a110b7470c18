#include "docs/examples/support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace examples {

using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Message;

absl::StatusOr<CommandLine> CommandLine::Parse(
    int argc, char** argv, std::initializer_list<absl::string_view> known) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (!absl::ConsumePrefix(&word, "--")) {
      line.words_.emplace_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    const absl::string_view name = word.substr(0, equals);
    if (name == "help") {
      Print(absl::StripSuffix(Help(), "\n"));
      std::_Exit(EXIT_SUCCESS);
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", name, "; expected --",
                       absl::StrJoin(known, ", --"), " (--name=value)"));
    }
    line.flags_[std::string(name)] = std::string(
        equals == absl::string_view::npos ? "" : word.substr(equals + 1));
  }
  return line;
}

std::string CommandLine::Text(const std::string& flag,
                              absl::string_view absent) const {
  const auto found = flags_.find(flag);
  return found == flags_.end() ? std::string(absent) : found->second;
}

absl::StatusOr<std::uint64_t> CommandLine::Number(const std::string& flag,
                                                  std::uint64_t absent) const {
  const std::string text = Text(flag, absl::StrCat(absent));
  std::uint64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", text, ": expected a number that is not negative"));
  }
  return number;
}

absl::StatusOr<std::uint64_t> CommandLine::Bytes(const std::string& flag,
                                                 std::uint64_t absent) const {
  const std::string text = Text(flag, absl::StrCat(absent));
  absl::string_view digits = text;
  int shift = 0;
  if (absl::ConsumeSuffix(&digits, "K")) {
    shift = 10;
  } else if (absl::ConsumeSuffix(&digits, "M")) {
    shift = 20;
  } else if (absl::ConsumeSuffix(&digits, "G")) {
    shift = 30;
  }
  std::uint64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number == 0 ||
      number > (std::numeric_limits<std::uint64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", text,
                     ": expected a number of bytes above 0, such as 4096, "
                     "512K, 64M or 2G"));
  }
  return number << shift;
}

absl::StatusOr<absl::Time> CommandLine::Deadline() const {
  absl::StatusOr<std::uint64_t> seconds = Number("timeout", 60);
  if (!seconds.ok()) return seconds.status();
  return absl::Now() + absl::Seconds(*seconds);
}

absl::StatusOr<Driver> LoadDriver(const CommandLine& line) {
  const std::string choice = line.Text("driver", "system");
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

int ExitStatus(absl::string_view program, const absl::Status& status) {
  if (status.ok()) return EXIT_SUCCESS;
  const std::string line = absl::StrCat(
      program, ": error: ", absl::StatusCodeToString(status.code()), ": ",
      status.message(), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
  return EXIT_FAILURE;
}

}  // namespace examples
