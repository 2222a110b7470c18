// The command-line tool as a function: what goes to standard output, what to
// standard error, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ipc/keeper_address.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/run.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Said {
  int exit_code;
  std::string out;
  std::string err;
};

Said RunWith(std::vector<std::string> words) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = Run(std::move(words));
  return {exit_code, ::testing::internal::GetCapturedStdout(),
          ::testing::internal::GetCapturedStderr()};
}

TEST(ToolRun, MisuseSaysWhatWasExpectedAndWhereHelpIs) {
  const struct {
    std::vector<std::string> words;
    const char* message;
    const char* help;
  } cases[] = {
      {{}, "a command is missing", "vmmshare --help"},
      {{"weight"}, "expected doctor, keep or weights", "vmmshare --help"},
      {{"--version", "x"}, "unexpected word \"x\"", "vmmshare --help"},
      {{"help", "x"}, "unexpected word \"x\"", "vmmshare --help"},
      {{"doctor", "--timeout=0"}, "--timeout=0", "vmmshare doctor --help"},
      {{"keep", "--max-names=0"}, "--max-names=0", "vmmshare keep --help"},
      {{"weights"}, "expected list, show", "vmmshare weights --help"},
      {{"weights", "put", "a"}, "python3 -m", "vmmshare weights --help"},
  };
  for (const auto& each : cases) {
    const Said said = RunWith(each.words);
    EXPECT_EQ(said.exit_code, kExitMisuse) << said.err;
    EXPECT_EQ(said.out, "");
    EXPECT_THAT(said.err, StartsWith("vmmshare: error: "));
    EXPECT_THAT(said.err, HasSubstr(each.message));
    EXPECT_THAT(said.err,
                HasSubstr(std::string("\nSee `") + each.help + "`.\n"));
  }
}

TEST(ToolRun, HelpOfEachCommandIsItsUsage) {
  for (const Command& command : Commands()) {
    for (const char* word : {"--help", "-h"}) {
      const Said said = RunWith({std::string(command.name), word});
      EXPECT_EQ(said.exit_code, kExitGood);
      EXPECT_EQ(said.out, UsageOf(command));
      EXPECT_EQ(said.err, "");
    }
    EXPECT_THAT(UsageOf(command),
                StartsWith("usage: vmmshare " + std::string(command.name)));
  }
  for (const char* word : {"--help", "-h", "help"}) {
    EXPECT_EQ(RunWith({word}).out, Usage());
  }
  EXPECT_EQ(RunWith({"--version"}).out, "vmmshare " VMMSHARE_VERSION "\n");
}

// `weights put` is of the Python package, which looks at its own.
TEST(ToolHelp, OptionsThatPutHasNotSayOfWhichVerbsTheyAre) {
  for (const OptionRow& option : CommandNamed("weights").options) {
    if (option.name != "allow-user" && option.name != "json") continue;
    EXPECT_THAT(std::string(option.text), StartsWith("list, show"));
  }
}

// No command has such by now.
constexpr absl::string_view kUses[] = {"sew [OPTIONS]", "sew --mend=NAME"};
constexpr VerbRow kVerbs[] = {{"a-verb-of-more-columns", ".what it does"}};
constexpr OptionRow kOptions[] = {
    {"an-option-of-many-words", "VALUE", "what it's for"}, {"short", "", "b"}};
constexpr Command kSew = {"sew",  "Sews",   kUses,    "Sews what is torn.",
                          kVerbs, kOptions, "0 or 1", "sew.md"};

TEST(ToolHelp, ATermThatIsTooLongHasALineOfItsOwn) {
  EXPECT_EQ(UsageOf(kSew),
            "usage: vmmshare sew [OPTIONS]\n"
            "       vmmshare sew --mend=NAME\n"
            "\nSews what is torn.\n"
            "\n  a-verb-of-more-columns\n"
            "                       .what it does\n"
            "\n  --an-option-of-many-words=VALUE\n"
            "                       what it's for\n"
            "  --short              b\n"
            "\nExit status: 0 or 1\n");
}

TEST(ToolHelp, NoLineOfAManualPageIsTakenForARequest) {
  const std::string page = ManualPage(&kSew, "1");
  EXPECT_THAT(page, HasSubstr("\n\\&.what it does\n"));
  EXPECT_THAT(page, HasSubstr("what it\\(aqs for"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("\n.what")));
}

TEST(ToolRun, WithoutAKeeperNothingOfItsWeightsIsTold) {
  for (const char* verb : {"list", "show", "verify", "drop"}) {
    std::vector<std::string> words = {
        "weights", verb, "--address=" + testing::KeeperAddressIn("/no")};
    if (words[1] != "list") words.insert(words.begin() + 2, "llm");
    const Said said = RunWith(words);
    EXPECT_EQ(said.exit_code, kExitNotUsable);
    EXPECT_EQ(said.out, "");
    EXPECT_THAT(said.err, StartsWith("vmmshare: error: "));
    EXPECT_THAT(said.err, HasSubstr("Start one: vmmshare keep."));
  }
}

}  // namespace
}  // namespace vmm::tool
