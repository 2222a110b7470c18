#include "platform/base/utf8.h"

#include "platform/base/check.h"

namespace vmm::platform {

std::size_t Utf8SequenceLength(absl::string_view text) {
  const auto at = [text](std::size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  if (text.empty()) return 0;
  const unsigned char first = at(0);
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xbf;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() < length || at(1) < low || at(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xbf) return 0;
  }
  return length;
}

void AppendUtf8(std::uint32_t point, std::string* out) {
  Check(point <= 0x10ffff && (point < 0xd800 || point > 0xdfff),
        "AppendUtf8() of what is no code point");
  const auto add = [out](std::uint32_t byte) {
    out->push_back(static_cast<char>(byte));
  };
  const auto more = [&](int shift) { add(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xc0 | point >> 6);
    return more(0);
  }
  if (point < 0x10000) {
    add(0xe0 | point >> 12);
    more(6);
    return more(0);
  }
  add(0xf0 | point >> 18);
  more(12);
  more(6);
  more(0);
}

}  // namespace vmm::platform
