// `vmmshare weights`: what can be asked for, and what is printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "platform/os/process.h"
#include "vmm/tool/weights.h"
#include "vmm/weights/manifest.h"

namespace vmm::tool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A table, one of its columns, and what has no elements.
TensorManifest Sample() {
  TensorManifest manifest;
  manifest.fingerprint = "sha256:7";
  manifest.generation = 3;
  manifest.metadata = {{"note", "two\nlines, \xc3\xa9"}};
  manifest.data_bytes = 128;
  manifest.tensors = {
      {"table", DType::kInt32, {4, 6}, {6, 1}, 0, std::nullopt, 0xdeadbeef},
      {"column", DType::kInt32, {4}, {6}, 8, 0},
      {"none", DType::kBFloat16, {0, 2}, {2, 1}, 128}};
  return manifest;
}

TEST(WeightsText, ShowsEachTensorAndInWhichOneItLies) {
  EXPECT_EQ(AsText("llm", Sample()),
            "llm\n"
            "  generation 3, 3 tensors, 128 bytes of data\n"
            "  fingerprint sha256:7\n"
            "  note: two\\nlines, \xc3\xa9\n"
            "             0 int32         [4, 6] table\n"
            "             8 int32         [4] column, in table\n"
            "           128 bfloat16      [0, 2] none\n");
}

// Metadata are another process's, or a file's.
TEST(WeightsText, HasNothingThatATerminalObeys) {
  const auto shown = [](const std::string& value) {
    TensorManifest manifest;
    manifest.metadata = {{"note", value}};
    const std::string text = AsText("llm", manifest);
    const std::size_t begin = text.find("note: ") + 6;
    return text.substr(begin, text.size() - begin - 1);
  };
  EXPECT_EQ(shown("\x1b[31m\t\x7f\"\\"), "\\x1b[31m\\t\\x7f\\\"\\\\");
  // The same sequence as one character of C1, and as its bare byte.
  EXPECT_EQ(shown("\xc2\x9b"
                  "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(shown("\x9b"
                  "31m"),
            "\\x9b31m");
  EXPECT_EQ(shown("\xc2\x80\xc2\x9f"), "\\xc2\\x80\\xc2\\x9f");
  // Overlong, a surrogate, past the end, cut off.
  EXPECT_EQ(shown("\xc0\x9b"), "\\xc0\\x9b");
  EXPECT_EQ(shown("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(shown("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(shown("\xe2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(shown("\xe2\x82"), "\\xe2\\x82");
  for (const char* text :
       {"\xc2\xa0", "\xc3\x9b", "\xe2\x82\xac", "\xed\x9f\xbf",
        "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(shown(text), text);
  }
}

TEST(WeightsText, HasNoLineForAFingerprintThatIsNotThere) {
  EXPECT_EQ(AsText("llm", TensorManifest{}),
            "llm\n  generation 0, 0 tensors, 0 bytes of data\n");
}

TEST(WeightsJson, HasWhatAProgramNeedsToFindATensor) {
  const nlohmann::json all = nlohmann::json::parse(AsJson("llm", Sample()));
  EXPECT_EQ(all["name"], "llm");
  EXPECT_EQ(all["generation"], 3);
  EXPECT_EQ(all["fingerprint"], "sha256:7");
  EXPECT_EQ(all["metadata"]["note"], "two\nlines, \xc3\xa9");
  const nlohmann::json& tensors = all["tensors"];
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0], nlohmann::json({{"name", "table"},
                                        {"dtype", "int32"},
                                        {"shape", {4, 6}},
                                        {"strides", {6, 1}},
                                        {"offset", 0},
                                        {"nbytes", 96},
                                        {"alias_of", nullptr},
                                        {"checksum", 0xdeadbeef}}));
  EXPECT_EQ(tensors[1]["alias_of"], "table");
  EXPECT_EQ(tensors[1]["nbytes"], 76);
  EXPECT_TRUE(tensors[1]["checksum"].is_null());
  EXPECT_EQ(tensors[2]["nbytes"], 0);
}

TEST(WeightsOptions, AreOfAVerbASetAndWhereToAsk) {
  const absl::StatusOr<WeightsOptions> list = ParseWeightsOptions({"list"});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->verb, "list");
  EXPECT_EQ(list->name + list->address, "");
  EXPECT_EQ(list->driver, "system");
  EXPECT_FALSE(list->json || list->help);
  for (const char* verb : {"show", "verify", "drop"}) {
    const absl::StatusOr<WeightsOptions> options = ParseWeightsOptions(
        {verb, "a/b-1.x", "--address=/k", "--driver", "host"});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->verb, verb);
    EXPECT_EQ(options->name, "a/b-1.x");
    EXPECT_EQ(options->address, "/k");
    EXPECT_EQ(options->driver, "host");
    EXPECT_TRUE(options->allowed.empty());
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"list", "--json"},
        {"show", "a", "--json"},
        {"show", "--json", "a"},
        {"show", "--driver", "host", "a", "--json"}}) {
    const absl::StatusOr<WeightsOptions> options = ParseWeightsOptions(words);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_TRUE(options->json);
    EXPECT_EQ(options->name, words[0] == "list" ? "" : "a");
  }
  // Whose keeper it may be.
  const platform::UserId me = platform::CurrentUser();
  const absl::StatusOr<WeightsOptions> theirs =
      ParseWeightsOptions({"list", absl::StrCat("--allow-user=", me.text())});
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_THAT(theirs->allowed, ElementsAre(me));
  // Help is had with whatever else is wrong.
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--help"},
        {"shwo", "-h"},
        {"put", "--help"},
        {"put", "llm", "a.safetensors", "--help"}}) {
    const absl::StatusOr<WeightsOptions> options = ParseWeightsOptions(words);
    EXPECT_TRUE(options.ok() && options->help) << words.front();
  }
}

TEST(WeightsOptions, ThatAreWrongSayWhatIsRight) {
  const struct {
    std::vector<std::string> words;
    const char* message;
  } cases[] = {
      {{}, "expected list, show, verify, drop or put"},
      {{"shwo", "llm"}, "weights \"shwo\": expected list"},
      {{"--json"}, "weights \"\": expected list"},
      {{"put", "llm"}, "python3 -m vmmshare weights put"},
      {{"put", "llm", "a.safetensors"}, "python3 -m vmmshare weights put"},
      {{"put", "llm", "a", "--host-node=0"}, "python3 -m vmmshare weights put"},
      {{"list", "--allow-user=no such user"}, "--allow-user: "},
      {{"list", "llm"}, "unexpected word \"llm\""},
      {{"show"}, "weights show: "},
      {{"verify", "a b"}, "weights verify: "},
      {{"drop", "--json"}, "weights drop: "},
      {{"drop", "llm", "--json"}, "--json is for list and show"},
      {{"verify", "llm", "--json"}, "--json is for list and show"},
      {{"list", "--address=/a", "--address=/b"}, "--address is given twice"},
      {{"show", "llm", "--json", "more"}, "unexpected word \"more\""},
      {{"drop", "llm", "more"}, "unexpected word \"more\""},
      {{"show", "llm", "--colour"}, "unknown option --colour"},
      {{"show", "llm", "--json=1"}, "--json takes no value"},
      {{"show", "llm", "--address"}, "--address needs a value"},
  };
  for (const auto& each : cases) {
    const absl::Status status = ParseWeightsOptions(each.words).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << each.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message));
  }
}

}  // namespace
}  // namespace vmm::tool
