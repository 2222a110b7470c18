#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/base/crc32c.h"
#include "vmm/memory/internal/wire.h"

namespace vmm {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes Of(absl::string_view text) { return Bytes(text.begin(), text.end()); }

TEST(WireWriter, PutsTheLowestByteFirst) {
  Bytes bytes;
  WireWriter out(bytes);
  out.Put<std::uint8_t>(0x01);
  out.Put<std::uint16_t>(0x0302);
  out.Put<std::uint32_t>(0x07060504);
  out.Put<std::uint64_t>(0x0f0e0d0c0b0a0908);
  out.PutZeros(2);
  out.PutBytes(Bytes{0xaa, 0xbb});
  Bytes expected(15);
  std::iota(expected.begin(), expected.end(), 1);
  expected.insert(expected.end(), {0, 0, 0xaa, 0xbb});
  EXPECT_EQ(bytes, expected);
}

TEST(WireWriter, PutsTextWithoutALengthAndFillsItsRoom) {
  Bytes bytes;
  WireWriter out(bytes);
  out.PutText("\xff");
  out.PutText("ab", 4);
  out.PutText("abcd", 4);
  out.PutText("", 1);
  EXPECT_EQ(bytes, (Bytes{0xff, 'a', 'b', 0, 0, 'a', 'b', 'c', 'd', 0}));
}

TEST(WireReader, TakesWhatTheWriterPut) {
  Bytes bytes;
  WireWriter out(bytes);
  out.Put<std::uint64_t>(0xfedcba9876543210);
  out.Put<std::uint8_t>(0x80);
  out.Put<std::uint32_t>(0xffffffff);
  out.Put<std::uint16_t>(0x8001);
  WireReader in(bytes);
  EXPECT_EQ(in.Take<std::uint64_t>(), 0xfedcba9876543210);
  EXPECT_EQ(in.Take<std::uint8_t>(), 0x80);
  EXPECT_EQ(in.Take<std::uint32_t>(), 0xffffffff);
  EXPECT_EQ(in.left(), 2u);
  EXPECT_EQ(in.Take<std::uint16_t>(), 0x8001);
  EXPECT_EQ(in.left(), 0u);
  EXPECT_FALSE(in.overrun());
}

TEST(WireReader, ReadsZerosPastTheEndAndRemembersIt) {
  const Bytes bytes = {0xff, 0xff, 0xff};
  WireReader in(bytes);
  EXPECT_EQ(in.Take<std::uint32_t>(), 0x00ffffffu);
  EXPECT_TRUE(in.overrun());
  EXPECT_EQ(in.left(), 0u);
  EXPECT_EQ(in.Take<std::uint64_t>(), 0u);
  Bytes rest(5, 0xee);
  in.TakeBytes(absl::MakeSpan(rest));
  EXPECT_EQ(rest, Bytes(5, 0));
  EXPECT_TRUE(in.overrun());
}

TEST(WireReader, ReadingExactlyToTheEndIsNoOverrun) {
  const Bytes bytes = {1, 2, 3, 4};
  WireReader in(bytes);
  in.Take<std::uint32_t>();
  EXPECT_FALSE(in.overrun());
  Bytes none;
  in.TakeBytes(absl::MakeSpan(none));
  EXPECT_FALSE(in.overrun());
  in.Take<std::uint8_t>();
  EXPECT_TRUE(in.overrun());
}

TEST(WireReader, TellsZerosFromAnyOtherByte) {
  for (std::size_t place = 0; place < 4; ++place) {
    Bytes bytes(4, 0);
    EXPECT_TRUE(WireReader(bytes).TakeZeros(4));
    bytes[place] = 1;
    WireReader in(bytes);
    EXPECT_FALSE(in.TakeZeros(4)) << place;
    EXPECT_EQ(in.left(), 0u) << "all of them are read all the same";
  }
}

TEST(WireReader, ZerosThatAreNotThereCountAsAnOverrun) {
  const Bytes bytes(3, 0);
  WireReader in(bytes);
  EXPECT_TRUE(in.TakeZeros(4));
  EXPECT_TRUE(in.overrun());
}

TEST(WireReader, EmptyInputIsReadAsZeros) {
  WireReader in({});
  EXPECT_EQ(in.left(), 0u);
  EXPECT_FALSE(in.overrun());
  EXPECT_EQ(in.Take<std::uint16_t>(), 0);
  EXPECT_TRUE(in.overrun());
}

// The first is the check value of every catalogue of CRCs, the others are of
// RFC 3720, B.4.
TEST(Crc32c, AgreesWithThePublishedVectors) {
  EXPECT_EQ(Crc32c(Of("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(Bytes(32, 0x00)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Bytes(32, 0xff)), 0x62a8ab43u);
  Bytes ascending(32);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  const Bytes descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(Crc32c(descending), 0x113fdb5cu);
  EXPECT_EQ(Crc32c({}), 0u);
}

// Bit by bit, as it is defined.
std::uint32_t SlowState(std::uint32_t state,
                        absl::Span<const std::uint8_t> bytes) {
  for (const std::uint8_t byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0u);
    }
  }
  return state;
}
std::uint32_t SlowCrc32c(absl::Span<const std::uint8_t> bytes) {
  return ~SlowState(~0u, bytes);
}

// Lengths around those at which it goes by lanes or by wide registers, and none of
// them aligned; each way that this processor has.
TEST(Crc32c, IsWhatItsDefinitionSaysForAllLengths) {
  std::mt19937_64 random(7);
  std::vector<std::uint8_t> bytes(60'000);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  for (const std::size_t around :
       {0, 8, 256, 1'024, 1'280, 4'096, 12'288, 24'576, 36'864}) {
    for (std::size_t size = around < 9 ? 0 : around - 9; size < around + 9;
         ++size) {
      const auto part = absl::MakeConstSpan(bytes).subspan(size % 7, size);
      ASSERT_EQ(Crc32c(part), SlowCrc32c(part)) << size << " bytes";
      const std::size_t cut = size / 3;
      ASSERT_EQ(ExtendCrc32c(Crc32c(part.first(cut)), part.subspan(cut)),
                SlowCrc32c(part))
          << size << " bytes in two parts";
      for (const auto extend :
           {&platform::ExtendCrc32cByTables, platform::FindCrc32cInstruction(),
            platform::FindWideCrc32c()}) {
        if (extend == nullptr) continue;
        ASSERT_EQ(~extend(~0u, part.data(), size), SlowCrc32c(part))
            << size << " bytes by another way";
      }
    }
  }
}

TEST(Crc32c, TablesMoveAByteOverThoseBehindIt) {
  platform::Crc32cTables tables{};
  tables = platform::MakeCrc32cTables();  // Now, and not by the compiler.
  for (std::size_t k = 0; k < tables.size(); ++k) {
    Bytes bytes(k + 1);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      bytes[0] = static_cast<std::uint8_t>(byte);
      ASSERT_EQ(tables[k][byte], SlowState(0, bytes)) << k << ' ' << byte;
    }
  }
}

TEST(Crc32c, ShiftsMoveARegisterOverZeros) {
  std::mt19937 random(7);
  for (int power = 0; power < 13; ++power) {
    const platform::Crc32cShift shift = platform::MakeCrc32cShift(power);
    const Bytes zeros(std::size_t{1} << power);
    for (const std::uint32_t state :
         {0u, 1u, ~0u, static_cast<std::uint32_t>(random())}) {
      EXPECT_EQ(platform::Apply(shift, state), SlowState(state, zeros))
          << power;
    }
  }
}

TEST(Crc32c, FindsEveryFlippedBit) {
  Bytes bytes(192);
  std::iota(bytes.begin(), bytes.end(), 0);
  const std::uint32_t right = Crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ASSERT_NE(Crc32c(bytes), right) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
}

TEST(TrailingCrc32c, IsOfAllBeforeIt) {
  Bytes bytes = Of("123456789");
  WireWriter(bytes).Put<std::uint32_t>(0xe3069283);
  EXPECT_TRUE(TrailingCrc32c(bytes).is_right());
  for (std::uint8_t& byte : bytes) {
    byte ^= 1;
    EXPECT_FALSE(TrailingCrc32c(bytes).is_right()) << (&byte - bytes.data());
    byte ^= 1;
  }
  bytes.back() ^= 1;
  EXPECT_EQ(TrailingCrc32c(bytes).stated, 0xe2069283u);
  EXPECT_EQ(TrailingCrc32c(bytes).actual, 0xe3069283u);
  EXPECT_TRUE(TrailingCrc32c(Bytes(kCrcBytes, 0)).is_right());
}

}  // namespace
}  // namespace vmm
