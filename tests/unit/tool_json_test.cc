#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/json.h"
#include "vmm/tool/weights.h"
#include "vmm/weights/manifest.h"

namespace vmm::tool {
namespace {

std::string Printed(absl::string_view text) {
  const std::string line = JsonText(Json(text));
  return line.substr(0, line.size() - 1);  // Without the newline.
}

TEST(Json, PrintsMembersInTheirOrder) {
  Json object = Json::object();
  object["z"] = {-1, true, nullptr};
  object["b"] = Json::array();
  object["c"] = Json::object();
  object["a"] = false;
  EXPECT_EQ(JsonText(object),
            "{\n  \"z\": [\n    -1,\n    true,\n    null\n  ],\n"
            "  \"b\": [],\n  \"c\": {},\n  \"a\": false\n}\n");
}

TEST(Json, PrintsNumbersExactly) {
  EXPECT_EQ(JsonText(Json(std::numeric_limits<std::int64_t>::min())),
            "-9223372036854775808\n");
  EXPECT_EQ(JsonText(Json(std::numeric_limits<std::uint64_t>::max())),
            "18446744073709551615\n");
}

TEST(Json, EscapesWhatMustBe) {
  EXPECT_EQ(Printed("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\nd\\u0001\"");
  EXPECT_EQ(Printed(absl::string_view("\0", 1)), "\"\\u0000\"");
}

// In UTF-8 a terminal obeys these too.
TEST(Json, EscapesControlCharactersBeyondAscii) {
  EXPECT_EQ(Printed("a\x7f"), "\"a\\u007f\"");
  EXPECT_EQ(Printed("\xc2\x80\xc2\x9b"
                    "31m"),
            "\"\\u0080\\u009b31m\"");
  EXPECT_EQ(Printed("\xc2\x9f\xc2\xa0\xc3\x9b"), "\"\\u009f\xc2\xa0\xc3\x9b\"");
  const std::string all = "\x01\x7f\xc2\x80\xc2\x9f\xc2\xa0";
  EXPECT_EQ(nlohmann::json::parse(Printed(all)), all);
}

TEST(Json, KeepsUtf8AndReplacesWhatIsNone) {
  for (const char* text : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Printed(text), "\"" + std::string(text) + "\"");
  }
  EXPECT_EQ(Printed("a\xff"), "\"a\xef\xbf\xbd\"");
  // Overlong, a surrogate, past the end, cut off.
  for (const char* text : {"\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xe2\x82", "\xe2\x82z"}) {
    EXPECT_EQ(Printed(text).find(text), std::string::npos) << Printed(text);
    EXPECT_NE(Printed(text).find("\xef\xbf\xbd"), std::string::npos);
  }
}

// Metadata are a peer's, or a file's.
TEST(Json, OfAManifestWithManyMetadataTakesNoLongerForEachOfThem) {
  TensorManifest manifest;
  for (int i = 0; i < 200'000; ++i) {
    manifest.metadata[absl::StrCat("key", i)] = "value";
  }
  const nlohmann::json read = nlohmann::json::parse(AsJson("name", manifest));
  EXPECT_EQ(read["metadata"].size(), 200'000u);
}

}  // namespace
}  // namespace vmm::tool
