// JSON as RFC 8259 has it, and what is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "platform/base/status_macros.h"
#include "tests/support/must.h"
#include "vmm/weights/internal/json_reader.h"

namespace vmm::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Must;
using ::testing::Pair;

absl::StatusOr<std::string> Text(absl::string_view json) {
  JsonReader reader(json);
  ASSIGN_OR_RETURN(std::string text, reader.ReadText());
  RETURN_IF_ERROR(reader.ReadEnd());
  return text;
}

absl::StatusOr<std::int64_t> Count(absl::string_view json) {
  JsonReader reader(json);
  ASSIGN_OR_RETURN(const std::int64_t count, reader.ReadCount());
  RETURN_IF_ERROR(reader.ReadEnd());
  return count;
}

using Pairs = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

absl::StatusOr<Pairs> Whole(absl::string_view json) {
  JsonReader reader(json);
  Pairs pairs;
  RETURN_IF_ERROR(reader.ReadObject([&](std::string name) {
    pairs.emplace_back(std::move(name), std::vector<std::int64_t>());
    return reader.ReadArray([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::int64_t count, reader.ReadCount());
      pairs.back().second.push_back(count);
      return absl::OkStatus();
    });
  }));
  RETURN_IF_ERROR(reader.ReadEnd());
  return pairs;
}

TEST(JsonReaderTest, TextsAreUtf8) {
  EXPECT_EQ(Must(Text("\"\"")), "");
  EXPECT_EQ(Must(Text(" \t\r\n\"a.b\" ")), "a.b");
  EXPECT_EQ(Must(Text(R"("\"\\\/\b\f\n\r\t")")), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(Must(Text(R"("\u0041\u00e9\u20AC\ud83d\ude00")")),
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(Must(Text(R"("\ud7ff\ue000\ud800\udc00\udbff\udfff")")),
            "\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
  EXPECT_EQ(Must(Text("\" \xc2\x80\"")), " \xc2\x80");
  EXPECT_EQ(Must(Text("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"")),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f");
}

TEST(JsonReaderTest, WhatIsNoTextIsRefused) {
  constexpr absl::string_view kNone[] = {
      "", "a", "1", "\"", "\"a", "\"\\\"", "\"\n\"", "\"\x1f\"",
      // Escapes.
      "\"\\x41\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u\"", "\"\\", "\"\\u0000\"",
      // Surrogates alone, and in the wrong order.
      "\"\\ud83d\"", "\"\\ud83d\\n\"", "\"\\ud83d\\u0041\"",
      "\"\\ud83d\\ud83d\"", "\"\\ude00\"", "\"\\ud800\"", "\"\\udfff\"",
      "\"\\udc00\\udc00\"", "\"\\ud800\\ue000\"", "\"\\ud800\\udbff\"",
      // No UTF-8.
      "\"\xff\"", "\"\xc3\"", "\"\x80\"", "\"\x81\"", "\"\xc0\x80\"",
      "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
      // More than one.
      "\"a\"b"};
  for (const absl::string_view json : kNone) {
    EXPECT_TRUE(absl::IsInvalidArgument(Text(json).status())) << json;
  }
  // Neither ends it early.
  EXPECT_FALSE(Text(absl::string_view("\"a\0b\"", 5)).ok());
  EXPECT_FALSE(Text(absl::string_view("\"a\"\0", 4)).ok());
}

TEST(JsonReaderTest, CountsAreIntegersOf63Bits) {
  EXPECT_EQ(Must(Count("0")), 0);
  EXPECT_EQ(Must(Count(" 10 ")), 10);
  EXPECT_EQ(Must(Count("9223372036854775807")), INT64_MAX);
  for (const absl::string_view json :
       {"", "-1", "-0", "+1", "00", "01", "1.0", "1.", "1e3", "1E3", ".5",
        "true", "null", "\"1\"", "9223372036854775808", "18446744073709551616",
        "0x1", "NaN", "1 2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Count(json).status())) << json;
  }
}

TEST(JsonReaderTest, ObjectsAndArrays) {
  EXPECT_THAT(Must(Whole("{}")), ElementsAre());
  EXPECT_THAT(Must(Whole(" { \"a\" : [ 1 , 2 ] ,\"b\":[],\"a\":[3]}\n")),
              ElementsAre(Pair("a", ElementsAre(1, 2)),
                          Pair("b", ElementsAre()), Pair("a", ElementsAre(3))));
  for (const absl::string_view json : {"",
                                       "[]",
                                       "{",
                                       "}",
                                       "{\"a\"}",
                                       "{\"a\":}",
                                       "{\"a\":1}",
                                       "{\"a\":[1,]}",
                                       "{\"a\":[1 2]}",
                                       "{\"a\":[,1]}",
                                       "{\"a\":[1]",
                                       "{\"a\":[1}",
                                       "{\"a\":[1],}",
                                       "{,\"a\":[1]}",
                                       "{\"a\":[1]\"b\":[1]}",
                                       "{a:[1]}",
                                       "{\"a\":[[1]]}",
                                       "{}{}",
                                       "{} x",
                                       "\xef\xbb\xbf{}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Whole(json).status())) << json;
  }
}

TEST(JsonReaderTest, ErrorsSayWhereAndWhatWasExpected) {
  EXPECT_THAT(Whole("{\"a\": [1, -2]}").status().message(),
              HasSubstr("expected an integer from 0 to 2^63 - 1 at byte 10"));
  EXPECT_THAT(Whole("{\"a\" [1]}").status().message(),
              HasSubstr("expected \":\" at byte 5"));
}

TEST(JsonReaderTest, AnErrorOfTheCallerEndsIt) {
  JsonReader reader("{\"a\": 1, \"b\": 2}");
  int calls = 0;
  EXPECT_TRUE(absl::IsAborted(reader.ReadObject([&](std::string) {
    ++calls;
    return absl::AbortedError("enough");
  })));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace vmm::weights
