// `vmmshare keep`: its options, and the listing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "platform/os/process.h"
#include "vmm/tool/json.h"
#include "vmm/tool/keep.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;

TEST(KeepOptions, TakeNumbersAsPeopleWriteThem) {
  const absl::StatusOr<KeepOptions> options = ParseKeepOptions(
      {"--max-names=3", "--max-bytes=16G", "--max-connections", "5",
       "--quota-names=2", "--quota-bytes=7", "--address=/k"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->limits.names, 3u);
  EXPECT_EQ(options->limits.bytes, std::uint64_t{16} << 30);
  EXPECT_EQ(options->max_connections, 5u);
  EXPECT_EQ(options->limits.user_names, 2u);
  EXPECT_EQ(options->limits.user_bytes, 7u);
  EXPECT_EQ(options->address, "/k");
  EXPECT_FALSE(options->list || options->help || options->drop.has_value());
  const struct {
    const char* text;
    std::uint64_t bytes;
  } sizes[] = {
      {"1K", 1 << 10},
      {"3M", 3 << 20},
      {"2T", std::uint64_t{2} << 40},
      {"16777215T", std::uint64_t{0xffffff} << 40},
      {"18446744073709551615", std::numeric_limits<std::uint64_t>::max()}};
  for (const auto& each : sizes) {
    const absl::StatusOr<KeepOptions> given =
        ParseKeepOptions({absl::StrCat("--quota-bytes=", each.text)});
    ASSERT_TRUE(given.ok()) << given.status();
    EXPECT_EQ(given->limits.user_bytes, each.bytes) << each.text;
  }
}

TEST(KeepOptions, RefuseWhatIsNoNumberOrDoesNotFit) {
  for (const char* text :
       {"0", "K", "0K", "-1", "+1", " 1", "1 ", "1k", "1KK", "1.5G", "0x10",
        "16777216T", "18446744073709551616"}) {
    const absl::Status status =
        ParseKeepOptions({absl::StrCat("--max-bytes=", text)}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_EQ(status.message(),
              absl::StrCat("--max-bytes=", text,
                           ": expected a number from 1 on, of bytes or with K, "
                           "M, G or T behind it"));
  }
  // A number of names has no unit.
  EXPECT_EQ(ParseKeepOptions({"--max-names=1K"}).status().message(),
            "--max-names=1K: expected a number from 1 on");
}

TEST(KeepOptions, NameUsersAndWhatIsDropped) {
  const std::string me = platform::CurrentUser().text();
  const absl::StatusOr<KeepOptions> options =
      ParseKeepOptions({absl::StrCat("--allow-user=", me), "--drop",
                        "weights/a", absl::StrCat("--allow-user=", me)});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->allowed.size(), 2u);
  EXPECT_EQ(options->allowed.front(), platform::CurrentUser());
  EXPECT_EQ(options->drop, "weights/a");
  const struct {
    std::vector<std::string> words;
    const char* message;
  } wrong[] = {{{"--allow-user=no such user"}, "--allow-user: "},
               {{"--drop=two words"}, "--drop: "},
               {{"--list", "--drop=a"}, "--list and --drop are two commands"},
               {{"--drop=a", "--drop=b"},
                "--drop is given twice, as \"a\" and as \"b\""},
               {{"--list", "--max-names=1"}, "--max-names is for a keeper"},
               {{"--drop=a", "--quota-bytes=1G"}, "--quota-bytes is for"},
               {{"--json"}, "--json is for --list"},
               {{"--json", "--drop=a"}, "--json is for --list"},
               {{"--lst"}, "unknown option --lst"},
               {{"list"}, "unexpected word \"list\""}};
  for (const auto& each : wrong) {
    const absl::Status status = ParseKeepOptions(each.words).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << each.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message));
  }
}

KeptMemory Kept(const char* name, KeptState state) {
  KeptMemory memory;
  memory.name = name;
  memory.state = state;
  memory.user = platform::UserId("7");
  memory.pid = 42;
  memory.since = absl::FromUnixSeconds(86400);
  return memory;
}

TEST(KeepListing, OfNothingSaysSoAndWhyNothingWouldSurvive) {
  EXPECT_EQ(AsText(KeeperListing{}, absl::UTCTimeZone()), "nothing is kept\n");
  EXPECT_EQ(
      AsText(KeeperListing{{}, "no store of descriptors"}, absl::UTCTimeZone()),
      "nothing is kept\nno store of descriptors\n");
}

KeeperListing OfThree() {
  KeeperListing listing;
  listing.memory = {Kept("cache", KeptState::kReserved),
                    Kept("host", KeptState::kLocked),
                    Kept("weights", KeptState::kSealed)};
  KeptMemory& host = listing.memory[1];
  host.holder = platform::UserId("8");
  host.holder_pid = 43;
  host.size = 1000;
  host.allocated_size = 4096;
  host.chunks = 1;
  host.host_numa_node = 1;
  host.survives_restart = true;
  KeptMemory& weights = listing.memory[2];
  weights.size = weights.allocated_size = 4 << 20;
  weights.chunks = 2;
  weights.attached = 5;
  weights.kind = HandleKind::kFabric;
  return listing;
}

TEST(KeepListing, SaysWhoHasWhatAndHowLongItLives) {
  const KeeperListing listing = OfThree();
  EXPECT_EQ(
      AsText(listing, absl::UTCTimeZone()),
      absl::StrCat(
          "cache\n"
          "  reserved\n"
          "  reserved 1970-01-02 00:00:00 +0000 by process 42 of user 7\n"
          "host\n"
          "  locked by process 43 of user 8\n"
          "  put 1970-01-02 00:00:00 +0000 by process 42 of user 7\n"
          "  1000 bytes (4096 held in 1 chunks) of host NUMA node 1, as POSIX "
          "fd\n"
          "  attached 0 times; survives a restart of the keeper\n"
          "weights\n"
          "  sealed\n"
          "  put 1970-01-02 00:00:00 +0000 by process 42 of user 7\n"
          "  4194304 bytes (4194304 held in 2 chunks) of ",
          listing.memory[2].device.ToString(),
          ", as fabric handle\n"
          "  attached 5 times; ends with the process that created it\n"));
}

TEST(KeepListing, SaysTheSameAsJson) {
  EXPECT_EQ(AsJson(KeeperListing{}), "[]\n");
  const KeeperListing listing = OfThree();
  const Json cache = {{"name", "cache"}, {"state", "reserved"}, {"bytes", 0},
                      {"process", 42},   {"attached", 0},       {"user", "7"},
                      {"since", 86400.0}};
  const Json host = {{"name", "host"},
                     {"state", "locked"},
                     {"bytes", 1000},
                     {"process", 42},
                     {"attached", 0},
                     {"user", "7"},
                     {"since", 86400.0},
                     {"holder", 43},
                     {"holder_user", "8"},
                     {"allocated_bytes", 4096},
                     {"chunks", 1},
                     {"kind", "POSIX fd"},
                     {"host_node", 1},
                     {"survives_restart", true},
                     {"outlives_creator", true}};
  const Json weights = {{"name", "weights"},
                        {"state", "sealed"},
                        {"bytes", 4194304},
                        {"process", 42},
                        {"attached", 5},
                        {"user", "7"},
                        {"since", 86400.0},
                        {"allocated_bytes", 4194304},
                        {"chunks", 2},
                        {"kind", "fabric handle"},
                        {"device", listing.memory[2].device.ToString()},
                        {"survives_restart", false},
                        {"outlives_creator", false}};
  EXPECT_EQ(Json::parse(AsJson(listing)), Json::array({cache, host, weights}));
}

}  // namespace
}  // namespace vmm::tool
