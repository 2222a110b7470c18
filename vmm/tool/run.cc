#include "vmm/tool/run.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/os/surroundings.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/examine.h"
#include "vmm/tool/job.h"
#include "vmm/tool/keep.h"
#include "vmm/tool/print.h"
#include "vmm/tool/say.h"
#include "vmm/tool/weights.h"

namespace vmm::tool {
namespace {

// The exit code of a command that only prints `text`.
int Print(absl::string_view text) {
  return Say(stdout, text) ? kExitGood
                           : Fail("standard output could not be written");
}

int Misuse(absl::string_view message, absl::string_view help) {
  Say(stderr, absl::StrCat(ErrorLine(message), "See `", help, "`.\n"));
  return kExitMisuse;
}

bool TakesColour() {
  // https://no-color.org: set and not empty.
  const char* no_colour = std::getenv("NO_COLOR");
  return (no_colour == nullptr || *no_colour == '\0') &&
         platform::StandardOutputTakesColour();
}

// Where there is no such folder all that is looked for in it would be missing.
// `root` is UTF-8.
bool IsFolder(const std::string& root) {
  const auto folder =
      std::filesystem::path(std::u8string(root.begin(), root.end()));
  std::error_code error;
  return is_directory(folder, error);
}

int DoctorJob(const DoctorOptions& options) {
  absl::StatusOr<JobReport> report = ExamineJob(options);
  if (!report.ok()) {
    if (options.json &&
        !Say(stdout, JobErrorAsJson(report.status(), options.required))) {
      return Fail("the report could not be written");
    }
    return Fail(report.status().message());
  }
  if (report->prints() &&
      !Say(stdout, options.json ? AsJson(*report) : AsText(*report))) {
    return Fail("the report could not be written");
  }
  return report->exit_code();
}

int Doctor(const DoctorOptions& options) {
  if (!options.root.empty() && !IsFolder(options.root)) {
    return Misuse(absl::StrCat("--root=", options.root,
                               ": there is no such folder; expected one with "
                               "/dev, /proc and /run in it"),
                  "vmmshare doctor --help");
  }
  if (options.job) return DoctorJob(options);
  const Report report = Examine(options);
  const bool colour = TakesColour();
  const bool written =
      Say(stdout, options.json ? AsJson(report) : AsText(report, colour));
  if (!report.driver.ok()) {
    Fail(absl::StrCat("no driver: ", report.driver.status().message()));
  }
  return written ? report.exit_code() : Fail("the report could not be written");
}

// What `vmmshare NAME` does with `options`, as they were parsed.
template <typename Options>
int RunCommand(absl::string_view name, const absl::StatusOr<Options>& options,
               int (*run)(const Options& options)) {
  if (!options.ok()) {
    return Misuse(options.status().message(),
                  absl::StrCat("vmmshare ", name, " --help"));
  }
  return options->help ? Print(UsageOf(CommandNamed(name))) : run(*options);
}

}  // namespace

int Run(std::vector<std::string> words) {
  constexpr char kHelp[] = "vmmshare --help";
  if (words.empty()) return Misuse("a command is missing", kHelp);
  const std::string command = words.front();
  words.erase(words.begin());
  if (command == "doctor") {
    return RunCommand(command, ParseDoctorOptions(words), &Doctor);
  }
  if (command == "keep") {
    return RunCommand(command, ParseKeepOptions(words), &Keep);
  }
  if (command == "weights") {
    return RunCommand(command, ParseWeightsOptions(words), &Weights);
  }
  if (command != "--help" && command != "-h" && command != "help" &&
      command != "--version") {
    return Misuse(absl::StrCat("unknown command \"", command,
                               "\"; expected doctor, keep or weights"),
                  kHelp);
  }
  if (!words.empty()) {
    return Misuse(absl::StrCat("unexpected word \"", words.front(), "\""),
                  kHelp);
  }
  const std::string text =
      command == "--version" ? absl::StrCat("vmmshare ", VMMSHARE_VERSION, "\n")
                             : Usage();
  return Print(text);
}

}  // namespace vmm::tool
