#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "vmm/tool/json.h"

namespace vmm::tool {
namespace {

std::string Printed(absl::string_view text) {
  const std::string line = Json::Text(text).Print();
  return line.substr(0, line.size() - 1);  // Without the newline.
}

TEST(Json, PrintsEveryKindOfValue) {
  Json array = Json::Array();
  array.Append(Json::Integer(-1)).Append(Json::Bool(true)).Append(Json::Null());
  Json object = Json::Object();
  object.Add("a", std::move(array)).Add("b", Json::Array());
  object.Add("c", Json::Object()).Add("d", Json::Bool(false));
  EXPECT_EQ(object.Print(),
            "{\n  \"a\": [\n    -1,\n    true,\n    null\n  ],\n"
            "  \"b\": [],\n  \"c\": {},\n  \"d\": false\n}\n");
}

TEST(Json, PrintsNumbersExactly) {
  EXPECT_EQ(Json::Integer(std::numeric_limits<std::int64_t>::min()).Print(),
            "-9223372036854775808\n");
  EXPECT_EQ(Json::Integer(std::uint64_t{1} << 62).Print(),
            "4611686018427387904\n");
}

TEST(Json, EscapesWhatMustBe) {
  EXPECT_EQ(Printed("a\"b\\c\nd\te\x01\x7f"),
            "\"a\\\"b\\\\c\\nd\\u0009e\\u0001\\u007f\"");
  EXPECT_EQ(Printed(absl::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(Json, KeepsUtf8) {
  for (const char* text : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Printed(text), "\"" + std::string(text) + "\"");
  }
}

TEST(Json, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Printed("a\xff"), "\"a\\ufffd\"");
  // Overlong, a surrogate, past the end, cut off: a replacement for each byte.
  EXPECT_EQ(Printed("\xc0\xaf"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(Printed("\xe0\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(Printed("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(Printed("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(Printed("\xe2\x82"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(Printed("\xe2\x82z"), "\"\\ufffd\\ufffdz\"");
}

TEST(JsonDeathTest, MembersBelongInObjectsAndOnce) {
  EXPECT_DEATH(Json::Array().Add("a", Json::Null()), "needs an object");
  EXPECT_DEATH(Json::Object().Append(Json::Null()), "needs an array");
  EXPECT_DEATH(Json::Object().Add("a", Json::Null()).Add("a", Json::Null()),
               "a name that is there");
}

}  // namespace
}  // namespace vmm::tool
