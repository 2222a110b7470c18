#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "platform/base/hex.h"

namespace vmm::platform {
namespace {

TEST(Hex, ComesBackForEveryByte) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(BytesFromHex(absl::BytesToHexString(bytes)), bytes);
  EXPECT_EQ(BytesFromHex(""), "");
}

TEST(Hex, RefusesWhatIsNot) {
  for (const absl::string_view text :
       {"0", "abc", "0g", "g0", "AB", "0x", " 0", "-1", "00zz"}) {
    EXPECT_EQ(BytesFromHex(text), std::nullopt) << text;
  }
  EXPECT_EQ(BytesFromHex(absl::string_view("0\0", 2)), std::nullopt);
}

}  // namespace
}  // namespace vmm::platform
