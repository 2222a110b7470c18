// Headers of safetensors files, good and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "platform/base/status_macros.h"
#include "tests/support/must.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Must;
using ::testing::Pair;

// Of two tensors, of 24 and 4 bytes, in another order than their data.
constexpr absl::string_view kGood =
    R"({"__metadata__": {"format": "pt"},)"
    R"( "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},)"
    R"( "a": {"data_offsets": [0, 24], "dtype": "F32", "shape": [2, 3]}})";

absl::StatusOr<SafetensorsHeader> Decode(absl::string_view json,
                                         std::uint64_t data = 28) {
  return DecodeSafetensorsHeader(json, 8 + json.size() + data);
}

std::string Tensor(absl::string_view shape, absl::string_view offsets,
                   absl::string_view dtype = "U8") {
  return absl::StrCat(R"({"a": {"dtype": ")", dtype, R"(", "shape": )", shape,
                      R"(, "data_offsets": )", offsets, "}}");
}

void ExpectRefused(absl::string_view json, std::uint64_t data,
                   absl::string_view says) {
  const absl::Status status = Decode(json, data).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << json << ": " << status;
  EXPECT_THAT(status.message(), HasSubstr(says)) << json;
  EXPECT_THAT(status.message(),
              HasSubstr("no safetensors file, or a damaged one: "));
}

TEST(SafetensorsTest, AHeaderSaysWhereTensorsLieInTheFile) {
  const SafetensorsHeader header = Must(Decode(kGood));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
  ASSERT_EQ(header.tensors.size(), 2u);
  const std::uint64_t begin = 8 + kGood.size();
  EXPECT_EQ(header.tensors[0], (TensorInfo{.name = "a",
                                           .dtype = DType::kFloat32,
                                           .shape = {2, 3},
                                           .strides = {3, 1},
                                           .offset = begin}));
  EXPECT_EQ(header.tensors[1], (TensorInfo{.name = "b",
                                           .dtype = DType::kBFloat16,
                                           .shape = {2},
                                           .strides = {1},
                                           .offset = begin + 24}));
}

TEST(SafetensorsTest, EveryDTypeHasItsSize) {
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, DType>>{
           {"BOOL", DType::kBool},
           {"U8", DType::kUInt8},
           {"I8", DType::kInt8},
           {"U16", DType::kUInt16},
           {"I16", DType::kInt16},
           {"U32", DType::kUInt32},
           {"I32", DType::kInt32},
           {"U64", DType::kUInt64},
           {"I64", DType::kInt64},
           {"F16", DType::kFloat16},
           {"BF16", DType::kBFloat16},
           {"F32", DType::kFloat32},
           {"F64", DType::kFloat64},
           {"C64", DType::kComplex64},
           {"F8_E4M3", DType::kFloat8E4M3FN},
           {"F8_E5M2", DType::kFloat8E5M2},
           {"F8_E8M0", DType::kFloat8E8M0FNU},
           {"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
           {"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ}}) {
    const std::uint64_t size = SizeOf(dtype);
    const std::string json = Tensor("[]", absl::StrCat("[0,", size, "]"), name);
    const SafetensorsHeader header = Must(Decode(json, size));
    EXPECT_EQ(header.tensors[0].dtype, dtype);
  }
  const absl::Status unknown = Decode(Tensor("[]", "[0, 1]", "F4"), 1).status();
  EXPECT_TRUE(absl::IsUnimplemented(unknown));
  EXPECT_THAT(unknown.message(), HasSubstr("\"F4\"; known are BOOL, U8, "));
}

TEST(SafetensorsTest, TensorsWithoutBytesTakeNoPlace) {
  const SafetensorsHeader header = Must(Decode(
      R"({"z": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},)"
      R"( "none": {"dtype": "I64", "shape": [0, 3], "data_offsets": [1, 1]},)"
      R"( "first": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}})",
      1));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "first");
  EXPECT_EQ(header.tensors[2].name, "none");
  EXPECT_TRUE(Must(Decode("{}", 0)).tensors.empty());
}

TEST(SafetensorsTest, WhatContradictsItselfIsRefused) {
  ExpectRefused("", 0, "it is no JSON at byte ");
  ExpectRefused(absl::StrCat(kGood, "x"), 28, "it is no JSON at byte ");
  ExpectRefused("[]", 0, "expected an object");
  ExpectRefused(R"({"a": [1]})", 1, "\"a\": expected an object");
  ExpectRefused(R"({"a": {"dtype": ["U8"]}})", 1, "needs a text as its dtype");
  ExpectRefused(R"({"a": {"shape": "[1]"}})", 1, "needs an array as its shape");
  ExpectRefused(R"({"a": {"data_offsets": {"0": 1}}})", 1,
                "needs an array as its data_offsets");
  ExpectRefused(kGood, 29, "its tensors have 28 bytes, and its data 29");
  ExpectRefused(kGood, 27, "within the 27 bytes of data");
  ExpectRefused(absl::StrReplaceAll(kGood, {{"\"b\"", "\"a\""}}), 28,
                "tensor \"a\" is there twice");
  ExpectRefused(absl::StrReplaceAll(kGood, {{"[24, 28]", "[20, 24]"}}), 24,
                "\"b\" begins at 20 of the data, and the one before it ends "
                "at 24");
  ExpectRefused(absl::StrReplaceAll(kGood, {{"[24, 28]", "[25, 29]"}}), 29,
                "begins at 25");
  ExpectRefused(absl::StrReplaceAll(kGood, {{"[2, 3]", "[2, 4]"}}), 28,
                "has 24 bytes of data; of its shape and dtype expected 32");
  ExpectRefused(Tensor("[1]", "[1, 0]"), 1, "data_offsets");
  ExpectRefused(Tensor("[1]", "[0]"), 1, "data_offsets");
  ExpectRefused(Tensor("[1]", "[0, 1, 1]"), 1, "more than 2 data_offsets");
  ExpectRefused(Tensor("[-1]", "[0, 1]"), 1,
                "needs integers from 0 to 2^63 - 1 in its shape");
  ExpectRefused(Tensor("[4294967296, 4294967296]", "[0, 1]"), 1,
                "has a shape of more bytes than fit 63 bits");
  ExpectRefused(Tensor("[9223372036854775807]", "[0, 1]", "F64"), 1,
                "than fit 63 bits");
  ExpectRefused(Tensor("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                       "1,1,1,1,1,1]",
                       "[0, 1]"),
                1, "more than 32 dimensions");
  ExpectRefused(R"({"a": {"dtype": "U8", "shape": [1]}})", 1,
                "tensor \"a\" has not all of");
  ExpectRefused(R"({"a": {"dtype": "U8", "data_offsets": [0, 1]}})", 1,
                "not all of");
  ExpectRefused(R"({"a": {"shape": [1], "data_offsets": [0, 1]}})", 1,
                "not all of");
  ExpectRefused(
      R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},)"
      R"( "b": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},)"
      R"( "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}})",
      3, "tensor \"a\" is there twice");
  ExpectRefused(R"({"a": {"dtype": "U8", "dtype": "U8"}})", 1, "there twice");
  ExpectRefused(R"({"a": {"extra": 1}})", 1,
                "has \"extra\", unknown or there twice");
  ExpectRefused(R"({"__metadata__": {"a": 1}})", 0,
                "\"a\" of __metadata__: expected a text");
  ExpectRefused(R"({"__metadata__": "a"})", 0, "expected an object");
  ExpectRefused(R"({"__metadata__": {"a": "", "a": ""}})", 0,
                "the key \"a\" of __metadata__ is there twice");
  for (const char* again : {"{}", "null"}) {
    ExpectRefused(
        absl::StrCat(R"({"__metadata__": {}, "__metadata__": )", again, "}"), 0,
        "__metadata__ are there twice");
  }
  ExpectRefused(R"({"__metadata__": {"a": null}})", 0,
                "\"a\" of __metadata__: expected a text");
  ExpectRefused(R"({"a": null})", 0, "\"a\": expected an object");
}

TEST(SafetensorsTest, MetadataMayBeNull) {
  const std::string json =
      absl::StrReplaceAll(kGood, {{R"({"format": "pt"})", "null"}});
  const SafetensorsHeader header = Must(Decode(json));
  EXPECT_TRUE(header.metadata.empty());
  EXPECT_EQ(header.tensors.size(), 2u);
}

// The value of the only metadata.
absl::StatusOr<std::string> Text(absl::string_view json) {
  ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      Decode(absl::StrCat(R"({"__metadata__": {"a": )", json, "}}"), 0));
  return header.metadata.at("a");
}

TEST(SafetensorsTest, TextsAreUtf8) {
  EXPECT_EQ(Must(Text("\"\"")), "");
  EXPECT_EQ(Must(Text(" \t\r\n\"a.b\" ")), "a.b");
  EXPECT_EQ(Must(Text(R"("\"\\\/\b\f\n\r\t")")), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(Must(Text(R"("\u0041\u00e9\u20AC\ud83d\ude00")")),
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(Must(Text("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"")),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f");
}

TEST(SafetensorsTest, WhatIsNoTextIsRefused) {
  constexpr absl::string_view kNone[] = {
      "", "a", "1", "\"", "\"a", "\"\\\"", "\"\n\"", "\"\x1f\"", "'a'",
      // Escapes.
      "\"\\x41\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u\"", "\"\\",
      // Names and metadata are C's texts too.
      "\"\\u0000\"",
      // Surrogates alone, and in the wrong order.
      "\"\\ud83d\"", "\"\\ud83d\\n\"", "\"\\ud83d\\u0041\"", "\"\\ude00\"",
      "\"\\udc00\\udc00\"",
      // No UTF-8: cut, alone, overlong, a surrogate, past the end.
      "\"\xff\"", "\"\xc3\"", "\"\x80\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
      "\"\xf4\x90\x80\x80\"",
      // More than one.
      "\"a\"b", "\"a\" \"b\""};
  for (const absl::string_view json : kNone) {
    EXPECT_TRUE(absl::IsInvalidArgument(Text(json).status())) << json;
  }
  ExpectRefused(R"({"a\u0000b": {}})", 0, "a name has a NUL");
}

TEST(SafetensorsTest, CountsAreIntegersOf63Bits) {
  const absl::string_view none = R"({"a": {"dtype": "U8", "shape": [0, $], )"
                                 R"("data_offsets": [0, 0]}})";
  for (const char* count : {"0", " 10 ", "9223372036854775807"}) {
    EXPECT_TRUE(Decode(absl::StrReplaceAll(none, {{"$", count}}), 0).ok());
  }
  for (const char* count : {"",
                            "-1",
                            "-0",
                            "+1",
                            "00",
                            "01",
                            "1.0",
                            "1.",
                            "1e3",
                            "1e999",
                            ".5",
                            "true",
                            "null",
                            "\"1\"",
                            "[1]",
                            "{}",
                            "9223372036854775808",
                            "18446744073709551616",
                            "0x1",
                            "NaN",
                            "1 2",
                            "1,"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        Decode(absl::StrReplaceAll(none, {{"$", count}}), 0).status()))
        << count;
  }
}

// What the JSON library takes for the end, or skips.
TEST(SafetensorsTest, NothingStandsAroundTheObject) {
  EXPECT_TRUE(Decode(" {} \n", 0).ok());
  for (const absl::string_view json :
       {absl::string_view("{}\0", 3), absl::string_view("{}\0x", 4),
        absl::string_view("{\0}", 3), absl::string_view("\xef\xbb\xbf{}"),
        absl::string_view("{}{}"), absl::string_view("{} x"),
        absl::string_view("{} // x"), absl::string_view("/**/ {}"),
        absl::string_view("{,}"), absl::string_view("{"),
        absl::string_view("}"), absl::string_view("{a: 1}")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(json, 0).status())) << json;
  }
}

// Neither the stack nor memory grows with what is refused.
TEST(SafetensorsTest, DepthIsRefusedAtOnce) {
  for (const absl::string_view begin :
       {"", R"({"a": )", R"({"__metadata__": {"a": )", R"({"a": {"dtype": )",
        R"({"a": {"shape": [)"}) {
    for (const char bracket : {'[', '{'}) {
      const std::string json =
          absl::StrCat(begin, std::string(1 << 20, bracket));
      EXPECT_TRUE(absl::IsInvalidArgument(Decode(json, 0).status())) << begin;
    }
  }
}

TEST(SafetensorsTest, AHeaderThatIsLargerThanTheFileIsRefused) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{7},
                                   std::uint64_t{8}, kGood.size() + 7}) {
    EXPECT_THAT(DecodeSafetensorsHeader(kGood, size).status().message(),
                HasSubstr("and the file has"));
  }
  EXPECT_TRUE(DecodeSafetensorsHeader("{}", 10).ok());
}

// As many as the safetensors library itself writes and reads.
TEST(SafetensorsTest, AHeaderHasAHundredMillionBytesAtMost) {
  EXPECT_EQ(kMaxSafetensorsHeader, 100'000'000u);
  std::string json(std::size_t{kMaxSafetensorsHeader}, ' ');
  json[0] = '{';
  json[1] = '}';
  EXPECT_TRUE(Decode(json, 0).ok());
  EXPECT_THAT(Decode(json + ' ', 0).status().message(),
              HasSubstr("a header has at most 100000000"));
}

// Of a file: `head` bytes of its length are there.
absl::StatusOr<SafetensorsHeader> Read(std::uint64_t length,
                                       absl::string_view rest,
                                       std::size_t head = 8) {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string bytes;
  for (std::size_t i = 0; i < head; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i)));
  }
  std::ofstream(path, std::ios::binary) << bytes << rest;
  return ReadSafetensorsHeader(path);
}

TEST(SafetensorsTest, AFilesHeaderIsRead) {
  const SafetensorsHeader header =
      Must(Read(kGood.size(), absl::StrCat(kGood, std::string(28, 'x'))));
  EXPECT_EQ(header.tensors.size(), 2u);
}

TEST(SafetensorsTest, FilesThatAreNoneAreNamed) {
  EXPECT_TRUE(absl::IsNotFound(
      ReadSafetensorsHeader(absl::StrCat(::testing::TempDir(), "/no/file"))
          .status()));
  for (const absl::Status& status :
       {Read(2, "{}", 7).status(), Read(3, "{}").status(),
        Read(UINT64_MAX, "{}").status(),
        Read(std::uint64_t{1} << 63, "{}").status(), Read(0, "").status(),
        Read(1, "{}").status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("FilesThatAreNoneAreNamed: "));
  }
  EXPECT_TRUE(Read(2, "{}").ok());
  // No more than the length itself.
  EXPECT_THAT(Read(2, "").status().message(),
              HasSubstr("said to have 2 bytes, and the file has 8"));
}

}  // namespace
}  // namespace vmm
