#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "vmm/tool/command_line.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;

TEST(DoctorOptions, DefaultToTheInstalledDriverAndText) {
  const absl::StatusOr<DoctorOptions> options = ParseDoctorOptions({});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->driver, "system");
  EXPECT_EQ(options->root, "");
  EXPECT_FALSE(options->nvml.has_value());
  EXPECT_FALSE(options->required.has_value());
  EXPECT_FALSE(options->json || options->touch || options->help);
}

TEST(DoctorOptions, TakeValuesEitherWay) {
  const absl::StatusOr<DoctorOptions> options =
      ParseDoctorOptions({"--driver=/a=b", "--root", "/r", "--require",
                          "fabric", "--nvml=/n", "--json", "--touch"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->driver, "/a=b");
  EXPECT_EQ(options->root, "/r");
  EXPECT_EQ(options->nvml, "/n");
  EXPECT_EQ(options->required, HandleKind::kFabric);
  EXPECT_TRUE(options->json && options->touch);
}

TEST(DoctorOptions, NameEveryKind) {
  for (HandleKind kind :
       {HandleKind::kPosixFd, HandleKind::kWin32, HandleKind::kFabric}) {
    const absl::StatusOr<DoctorOptions> options =
        ParseDoctorOptions({"--require", std::string(FlagOf(kind))});
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->required, kind);
  }
}

TEST(DoctorOptions, TakeNoKindThatIsNoneOfTheTool) {
  EXPECT_EQ(FlagOf(HandleKind::kLegacyIpc), "legacy-ipc");
  EXPECT_EQ(FlagOf(HandleKind::kStreamPool), "stream-pool");
  for (HandleKind kind : {HandleKind::kLegacyIpc, HandleKind::kStreamPool}) {
    const absl::Status status =
        ParseDoctorOptions({"--require", std::string(FlagOf(kind))}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST(DoctorOptions, OfAJobHaveATimeout) {
  const absl::StatusOr<DoctorOptions> usual = ParseDoctorOptions({"--job"});
  ASSERT_TRUE(usual.ok());
  EXPECT_TRUE(usual->job);
  EXPECT_EQ(usual->timeout_seconds, 60);
  EXPECT_EQ(ParseDoctorOptions({"--job", "--timeout=5"})->timeout_seconds, 5);
  EXPECT_THAT(
      std::string(ParseDoctorOptions({"--timeout=5"}).status().message()),
      HasSubstr("--timeout is for --job"));
  for (const char* word :
       {"--timeout=0", "--timeout=1s", "--timeout=-3", "--timeout=86401",
        "--timeout=99999999999", "--job=4"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseDoctorOptions({word}).status()))
        << word;
  }
}

TEST(DoctorOptions, AreGivenOnceWhereTheyTakeAValue) {
  const absl::Status status =
      ParseDoctorOptions({"--require=fabric", "--json", "--require", "fd"})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(),
            "--require is given twice, as \"fabric\" and as \"fd\"; give it "
            "once");
  // The same again says nothing else.
  EXPECT_TRUE(ParseDoctorOptions({"--json", "--touch", "--json"}).ok());
}

TEST(DoctorOptions, RefuseWhatTheyDoNotKnowAndSayWhat) {
  for (const char* word : {"doctor", "-j", "--", "--Json",
                           "--json=", "--driver", "--require=POSIX", "--=x"}) {
    const absl::Status status = ParseDoctorOptions({word}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << word;
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_FALSE(ParseDoctorOptions({"--driver", "--json"}).ok());
  EXPECT_THAT(
      std::string(ParseDoctorOptions({"--require=x"}).status().message()),
      HasSubstr("fd, nt or fabric"));
}

}  // namespace
}  // namespace vmm::tool
