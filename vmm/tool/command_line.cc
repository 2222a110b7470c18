#include "vmm/tool/command_line.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace vmm::tool {
namespace {

constexpr HandleKind kKinds[] = {HandleKind::kPosixFd, HandleKind::kWin32,
                                 HandleKind::kFabric};

absl::StatusOr<HandleKind> KindOf(absl::string_view text) {
  for (HandleKind kind : kKinds) {
    if (FlagOf(kind) == text) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--require=", text, ": expected fd, nt or fabric"));
}

}  // namespace

absl::string_view FlagOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::kPosixFd:
      return "fd";
    case HandleKind::kWin32:
      return "nt";
    case HandleKind::kFabric:
      return "fabric";
  }
  return "unknown";
}

absl::StatusOr<std::vector<Option>> ParseOptions(
    const std::vector<std::string>& words, absl::Span<const OptionName> known) {
  std::vector<Option> options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    absl::string_view name = words[i];
    if (name == "-h") name = "--help";
    if (!absl::ConsumePrefix(&name, "--")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unexpected word \"", words[i], "\"; options begin with --"));
    }
    std::optional<std::string> value;
    if (const std::size_t at = name.find('='); at != name.npos) {
      value = std::string(name.substr(at + 1));
      name = name.substr(0, at);
    }
    const auto found = std::find_if(
        known.begin(), known.end(),
        [name](const OptionName& one) { return one.name == name; });
    if (found == known.end()) {
      std::string expected;
      for (const OptionName& one : known) {
        absl::StrAppend(&expected,
                        &one == &known.front()  ? " --"
                        : &one == &known.back() ? " or --"
                                                : ", --",
                        one.name);
      }
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option --", name, "; expected", expected));
    }
    if (!found->takes_value && value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " takes no value"));
    }
    // "--require fabric" as well as "--require=fabric".
    if (found->takes_value && !value.has_value() && i + 1 < words.size() &&
        words[i + 1].substr(0, 2) != "--") {
      value = words[++i];
    }
    if (found->takes_value && (!value.has_value() || value->empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value: --", name, "=..."));
    }
    options.push_back({found->name, value.value_or("")});
  }
  return options;
}

absl::StatusOr<DoctorOptions> ParseDoctorOptions(
    const std::vector<std::string>& words) {
  static constexpr OptionName kKnown[] = {
      {"driver"},       {"require"},    {"json", false},
      {"touch", false}, {"job", false}, {"timeout"},
      {"nvml"},         {"root"},       {"help", false}};
  absl::StatusOr<std::vector<Option>> given = ParseOptions(words, kKnown);
  if (!given.ok()) return given.status();
  DoctorOptions options;
  for (const auto& [name, value] : *given) {
    options.json |= name == "json";
    options.touch |= name == "touch";
    options.job |= name == "job";
    options.help |= name == "help";
    if (name == "driver") options.driver = value;
    if (name == "nvml") options.nvml = value;
    if (name == "root") options.root = value;
    if (name == "timeout" &&
        (!absl::SimpleAtoi(value, &options.timeout_seconds) ||
         options.timeout_seconds < 1 || options.timeout_seconds > 86400)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--timeout=", value, ": expected seconds, 1 to 86400"));
    }
    if (name == "require") {
      absl::StatusOr<HandleKind> kind = KindOf(value);
      if (!kind.ok()) return kind.status();
      options.required = *kind;
    }
  }
  return options;
}

std::string Usage() {
  return "usage: vmmshare COMMAND [OPTIONS]\n"
         "\n"
         "  doctor      what of sharing GPU memory works here, and why not\n"
         "  keep        keep memory under names, beyond its creator's end\n"
         "  weights     named tensors that a keeper holds\n"
         "  --version   the version of vmmshare\n"
         "  --help      this text; `vmmshare COMMAND --help` says more\n";
}

std::string DoctorUsage() {
  return R"(usage: vmmshare doctor [OPTIONS]

Tries each way to share GPU memory on each device, and says what works, why
the rest does not, and what to do. It changes nothing and leaves nothing behind.

  --require=KIND       exit with 0 if KIND works on every device, else with 1;
                       KIND is fd, nt or fabric
  --json               one JSON object instead of text (docs/doctor.md)
  --touch              also write and read the shared memory; this makes a
                       context on each device, one after the other
  --job                the ranks of the job this process was launched in try
                       each other's memory; rank 0 prints the matrix. Under
                       mpirun, prun or srun --mpi=pmix
  --timeout=SECONDS    for --job: how long to wait for the other ranks (60)
  --driver=system      the installed NVIDIA driver (the default)
  --driver=host        the host-memory driver, which needs no GPU
  --driver=PATH        the driver in this file
  --nvml=PATH          the NVML to ask, in place of the system's or, with the
                       host-memory driver, of that driver's own
  --root=FOLDER        look for /dev, /proc and /run in FOLDER, as in the root
                       file system of a container
  --help               this text

Exit status: 0; 1 without a driver, or when what is required does not work, or
with --job when a rank is missing or does not reach another one's memory;
2 for a command line that makes no sense. Colour only on a terminal, and not
with NO_COLOR.
)";
}

}  // namespace vmm::tool
