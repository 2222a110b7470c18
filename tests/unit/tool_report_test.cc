// What `vmmshare doctor` prints where something is not known, or is not as on
// most machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/examine.h"
#include "vmm/tool/page.h"
#include "vmm/tool/print.h"
#include "vmm/tool/system_notes.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::Status Because(const char* why) { return absl::InternalError(why); }

platform::ImexChannel Channel() {
  platform::ImexChannel channel;
  channel.path = "/dev/nvidia-caps-imex-channels/channelx";
  channel.reason = absl::PermissionDeniedError("not this user's");
  channel.is_device = true;
  channel.major = 241;
  channel.mode = 0640;
  channel.owner = platform::UserId("7");
  return channel;
}

// Of a machine without a driver, and nothing worth a word around it.
Report Quiet() {
  return {absl::NotFoundError("no libcuda.so.1"),
          {},
          absl::OkStatus(),
          {},
          {absl::NotFoundError("no libnvidia-ml.so.1"),
           absl::UnknownError(""),
           false,
           {},
           {std::vector<platform::ImexChannel>(), std::nullopt, false}},
          {platform::DescriptorLimits{1 << 20, 1 << 20},
           platform::FileSpace{64 << 20, 32 << 20}, std::string(), false, 0,
           false, platform::MpsDaemon{"/tmp/mps", false, 0},
           platform::NvidiaModules{}, absl::OkStatus(),
           std::string("/run/vmmshare"), absl::OkStatus(), absl::OkStatus(),
           std::nullopt, std::nullopt, std::nullopt, std::nullopt},
          {},
          std::nullopt};
}

PairReport Pair() {
  return {0, 1, true, true, true, true, 0, true, std::nullopt};
}

// On one line.
std::string TextOf(const Report& report) {
  return absl::StrJoin(
      absl::StrSplit(AsText(report, /*colour=*/false), absl::ByAnyChar(" \n"),
                     absl::SkipEmpty()),
      " ");
}

nlohmann::json JsonOf(const Report& report) {
  return nlohmann::json::parse(AsJson(report));
}

TEST(ToolReport, WhatIsNotKnownOfAPairIsSaidWithTheReason) {
  const struct {
    void (*change)(PairReport&);
    const char* text;
    const char* null;  // The member that is null.
  } cases[] = {
      {[](PairReport& pair) { pair.access_ab = Because("first"); },
       "peer access unknown (first)", "access_ab"},
      {[](PairReport& pair) { pair.access_ba = Because("second"); },
       "peer access unknown (second)", "access_ba"},
      {[](PairReport& pair) { pair.atomics_ba = Because("third"); },
       "atomics unknown (third)", "atomics_ba"},
      {[](PairReport& pair) { pair.performance_rank = Because("fourth"); },
       "rank unknown (fourth)", "performance_rank"},
      // Above it says why NVML cannot be asked.
      {[](PairReport& pair) { pair.nvlink = Because("fifth"); },
       "both ways, NVLink unknown, rank 0", "nvlink"},
  };
  for (const auto& each : cases) {
    Report report = Quiet();
    report.pairs.push_back(Pair());
    each.change(report.pairs.front());
    EXPECT_THAT(TextOf(report), HasSubstr(each.text));
    const nlohmann::json pair = JsonOf(report)["pairs"][0];
    for (const auto& [name, value] : pair.items()) {
      EXPECT_EQ(value.is_null(),
                name == each.null || name == "one_fabric_domain")
          << name;
    }
  }
}

TEST(ToolReport, WhatGoesOneWayOnlySaysWhich) {
  Report report = Quiet();
  report.pairs = {Pair(), Pair()};
  report.pairs[0].access_ba = false;
  report.pairs[0].atomics_ab = false;
  report.pairs[1].one_domain = false;
  report.pairs[1].nvlink = false;
  const std::string text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("peer access of 0 to 1 only, "
                              "atomics of 1 to 0 only, NVLink, rank 0"));
  EXPECT_THAT(text, HasSubstr("peer access both ways, atomics both ways, no "
                              "NVLink, rank 0, not in one fabric domain"));
}

TEST(ToolReport, ChannelsOfEveryStateAreShown) {
  Report report = Quiet();
  EXPECT_THAT(TextOf(report), HasSubstr("driver offers no channels"));
  EXPECT_THAT(TextOf(report), HasSubstr("channels none"));
  EXPECT_EQ(JsonOf(report)["imex"]["class_registered"], false);

  report.topology.imex.major = std::optional<unsigned>(241);
  report.topology.imex.channels = {{Channel(), Channel()}};
  platform::ImexChannel& usable = report.topology.imex.channels->back();
  usable.number = 3;
  usable.usable = true;
  usable.mode = 0666;
  report.topology.imex.daemon_seen = true;
  std::string text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("offers channels, major 241"));
  // The rest of whose name is no number.
  EXPECT_THAT(text,
              HasSubstr("channel /dev/nvidia-caps-imex-channels/channelx, "
                        "mode 0640, owner 7, not this user's"));
  EXPECT_THAT(text, HasSubstr("channel 3 "));
  EXPECT_THAT(text, HasSubstr("mode 0666, owner 7, usable"));
  EXPECT_THAT(text, HasSubstr("nvidia-imex is running"));
  nlohmann::json imex = JsonOf(report)["imex"];
  EXPECT_EQ(imex["class_major"], 241);
  EXPECT_TRUE(imex["channels"][0]["number"].is_null());
  EXPECT_EQ(imex["channels"][0]["error"]["code"], "PERMISSION_DENIED");
  EXPECT_EQ(imex["channels"][1]["number"], 3);
  EXPECT_TRUE(imex["channels"][1]["world_writable"]);

  report.topology.imex = {Because("one"), Because("two"), Because("three")};
  text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("driver unknown: two"));
  EXPECT_THAT(text, HasSubstr("channels one"));
  EXPECT_THAT(text, HasSubstr("daemon unknown: three"));
  imex = JsonOf(report)["imex"];
  EXPECT_EQ(imex["channels_error"]["message"], "one");
  for (const char* null :
       {"class_registered", "class_major", "daemon_visible"}) {
    EXPECT_TRUE(imex[null].is_null()) << null;
  }
}

TEST(ToolReport, ASystemWithoutImexHasNoWordOfIt) {
  Report report = Quiet();
  report.topology.imex.major = absl::UnimplementedError("not here");
  EXPECT_THAT(TextOf(report), Not(HasSubstr("IMEX")));
}

TEST(ToolReport, EveryLimitThatIsNotKnownIsNullAndHasItsReasonInTheText) {
  Report report = Quiet();
  report.limits = {
      Because("a1"), Because("a2"),  Because("a3"),  Because("a4"),
      Because("a5"), Because("a6"),  Because("a7"),  Because("a8"),
      Because("a9"), Because("a10"), Because("a11"), absl::OkStatus(),
      std::nullopt,  std::nullopt,   std::nullopt,   std::nullopt};
  const std::string text = TextOf(report);
  for (const char* line :
       {"descriptors unknown: a1", "/dev/shm unknown: a2",
        "container unknown: a3", "WSL2 unknown: a4", "ptrace scope unknown: a5",
        "MPS unknown: a7", "modules unknown: a8",
        "peers' death cannot be watched before Linux 6.5: a9",
        "sockets unknown: a10"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  const nlohmann::json limits = JsonOf(report)["limits"];
  for (const auto& [name, value] : limits.items()) {
    if (name == "process_reference" || name == "boot_id") {
      EXPECT_EQ(value, false);
    } else {
      EXPECT_TRUE(value.is_null()) << name;
    }
  }
}

TEST(ToolReport, WhatThisSystemDoesNotHaveIsNotWorthALine) {
  Report report = Quiet();
  report.limits.descriptors = absl::UnimplementedError("b1");
  report.limits.wsl2 = absl::UnimplementedError("b2");
  const std::string text = TextOf(report);
  EXPECT_THAT(text, Not(HasSubstr("each shared chunk takes one")));
  EXPECT_THAT(text, Not(HasSubstr("WSL2")));
  EXPECT_THAT(text, HasSubstr("/dev/shm 64.0 MiB, 32.0 MiB free"));
}

TEST(ToolReport, LimitsThatAreNoneOrAreSetAreShown) {
  Report report = Quiet();
  report.limits.descriptors = platform::DescriptorLimits{1024, UINT64_MAX};
  report.limits.mps_threads = "50";
  report.limits.visible_devices = "0\x1b[31m";
  report.limits.connections = "3\x1b[32m";
  std::string text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("1024 (at most unlimited)"));
  EXPECT_THAT(text, HasSubstr("threads 50 %, memory unset"));
  // A terminal would obey it.
  EXPECT_THAT(text, HasSubstr("CUDA_VISIBLE_DEVICES=\"0?[31m\""));
  EXPECT_THAT(text, HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=\"3?[32m\""));
  report.limits.mps_threads.reset();
  report.limits.mps_memory = "0=1G";
  EXPECT_THAT(TextOf(report), HasSubstr("threads unset, memory 0=1G"));
  report.limits.modules = platform::NvidiaModules{false, {}};
  EXPECT_THAT(TextOf(report), HasSubstr("are the closed ones"));
  EXPECT_THAT(TextOf(report), HasSubstr("no /sys/module"));
  EXPECT_TRUE(JsonOf(report)["limits"]["rdma_modules"].is_null());
  report.limits.modules = platform::NvidiaModules{
      true, std::vector<std::string>{"gdrdrv", "nvidia_fs"}};
  text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("are the open ones"));
  EXPECT_THAT(text, HasSubstr("disks gdrdrv, nvidia_fs"));
  EXPECT_EQ(JsonOf(report)["limits"]["rdma_modules"].size(), 2u);
}

TEST(ToolReport, AUserWhomNoPeerAcceptsIsAgainstDescriptorsAlone) {
  Report report = Quiet();
  EXPECT_EQ(report.NoteAgainst(HandleKind::kPosixFd), "");
  report.limits.user_is_unknown = true;
  EXPECT_EQ(report.NoteAgainst(HandleKind::kPosixFd), "unknown-user");
  EXPECT_EQ(report.NoteAgainst(HandleKind::kFabric), "");
}

TEST(ToolReport, OnlyAMissingBootIdIsBlamedOnProc) {
  const auto remedy_for = [](const char* why) {
    Report report = Quiet();
    report.limits.boot_id = Because(why);
    std::vector<fabric::Finding> notes;
    AddNotesOnLimits(report, &notes);
    EXPECT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes.at(0).id, "no-boot-id");
    return notes.at(0).remedy;
  };
  EXPECT_THAT(remedy_for("open(/proc/sys/kernel/random/boot_id) failed"),
              HasSubstr("Mount /proc"));
  const std::string other = remedy_for("gethostname() failed");
  EXPECT_THAT(other, HasSubstr("the call that is named"));
  EXPECT_THAT(other, Not(HasSubstr("/proc")));
}

TEST(ToolReport, WithoutADriverOrDevicesNothingIsUsable) {
  Report report = Quiet();
  EXPECT_EQ(report.exit_code(), kExitNotUsable);
  EXPECT_THAT(TextOf(report), HasSubstr("driver: none: no libcuda.so.1"));
  EXPECT_EQ(JsonOf(report)["driver"]["error"]["code"], "NOT_FOUND");
  report.devices_status = Because("cannot be counted");
  EXPECT_THAT(TextOf(report), HasSubstr("devices: cannot be counted"));
  EXPECT_EQ(JsonOf(report)["devices_error"]["message"], "cannot be counted");
  report.required = HandleKind::kFabric;
  EXPECT_EQ(JsonOf(report)["required"], "fabric");
}

TEST(ToolPage, WhatATerminalObeysBecomesAQuestionMark) {
  Page page(/*colour=*/false);
  page.Plain("a\x1b[31m \x7f \xc3\xa9");
  page.Row("\xc2\x9b",
           "\x9b"
           "31m");
  EXPECT_EQ(std::move(page).Take(),
            "a?[31m ? \xc3\xa9\n  ??              ?31m\n");
}

TEST(ToolPage, ALabelThatIsTooLongHasASpaceBehindIt) {
  Page page(/*colour=*/true);
  page.Row("a label of more than its columns", "text", 0, Ink::kBad);
  page.Row("", "", 0, Ink::kBad);
  EXPECT_EQ(std::move(page).Take(),
            "\x1b[31ma label of more than its columns\x1b[0m text\n\n");
}

}  // namespace
}  // namespace vmm::tool
