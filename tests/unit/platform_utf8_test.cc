#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "platform/base/utf8.h"

namespace vmm::platform {
namespace {

bool IsSurrogate(std::uint32_t point) {
  return point >= 0xd800 && point <= 0xdfff;
}

TEST(Utf8Test, EveryCodePointIsOneSequence) {
  for (std::uint32_t point = 0; point <= 0x10ffff; ++point) {
    if (IsSurrogate(point)) continue;
    std::string text;
    AppendUtf8(point, &text);
    const std::size_t length = point < 0x80      ? 1
                               : point < 0x800   ? 2
                               : point < 0x10000 ? 3
                                                 : 4;
    ASSERT_EQ(text.size(), length) << point;
    ASSERT_EQ(Utf8SequenceLength(text), length) << point;
    ASSERT_EQ(Utf8SequenceLength(text + "x"), length) << point;
    text.pop_back();
    ASSERT_EQ(Utf8SequenceLength(text), 0u) << point;
  }
}

// All of two bytes, and of three and four those at the edges.
TEST(Utf8Test, AsManySequencesAsCodePoints) {
  int two = 0;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first),
                                static_cast<char>(second)};
      two += Utf8SequenceLength(text) == 2 ? 1 : 0;
    }
  }
  EXPECT_EQ(two, 0x800 - 0x80);
  for (const char* none :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xe2\x82x", "\xf0\x9f\x98x"}) {
    EXPECT_EQ(Utf8SequenceLength(none), 0u) << none;
  }
}

TEST(Utf8DeathTest, WhatIsNoCodePoint) {
  std::string text;
  EXPECT_DEATH(AppendUtf8(0xd800, &text), "no code point");
  EXPECT_DEATH(AppendUtf8(0x110000, &text), "no code point");
}

}  // namespace
}  // namespace vmm::platform
