#include "vmm/tool/command_line.h"

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

absl::StatusOr<DoctorOptions> ParseDoctorOptions(
    const std::vector<std::string>& words) {
  DoctorOptions options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    absl::string_view name = words[i];
    if (!absl::ConsumePrefix(&name, "--")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unexpected word \"", words[i], "\"; options begin with --"));
    }
    std::optional<std::string> value;
    if (const std::size_t at = name.find('='); at != name.npos) {
      value = std::string(name.substr(at + 1));
      name = name.substr(0, at);
    }
    const bool is_switch =
        name == "json" || name == "touch" || name == "job" || name == "help";
    if (is_switch) {
      if (value.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " takes no value"));
      }
      options.json |= name == "json";
      options.touch |= name == "touch";
      options.job |= name == "job";
      options.help |= name == "help";
      continue;
    }
    if (name != "driver" && name != "nvml" && name != "root" &&
        name != "require" && name != "timeout") {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown option --", name,
          "; expected --driver, --require, --json, --touch, --job, --timeout, "
          "--nvml, --root or --help"));
    }
    // "--require fabric" as well as "--require=fabric".
    if (!value.has_value() && i + 1 < words.size() &&
        words[i + 1].substr(0, 2) != "--") {
      value = words[++i];
    }
    if (!value.has_value() || value->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value: --", name, "=..."));
    }
    if (name == "driver") {
      options.driver = *value;
    } else if (name == "nvml") {
      options.nvml = *value;
    } else if (name == "root") {
      options.root = *value;
    } else if (name == "timeout") {
      if (!absl::SimpleAtoi(*value, &options.timeout_seconds) ||
          options.timeout_seconds < 1 || options.timeout_seconds > 86400) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--timeout=", *value, ": expected seconds, 1 to 86400"));
      }
    } else {
      absl::StatusOr<HandleKind> kind = KindOf(*value);
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
