#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "platform/ipc/frame.h"

namespace vmm::platform {
namespace {

std::vector<std::uint8_t> Packet(const FrameHeader& header) {
  const auto bytes = EncodeFrameHeader(header);
  std::vector<std::uint8_t> packet(bytes.begin(), bytes.end());
  packet.resize(kFrameHeaderSize + header.payload_size, 0xAB);
  return packet;
}

TEST(Frame, HeaderIsTheseBytes) {
  const auto bytes = EncodeFrameHeader({0x1234, 0x00005678, 9});
  const std::vector<std::uint8_t> expected = {
      0x56, 0x4D, 0x53, 0x48, 0x01, 0x00, 0x34, 0x12,
      0x78, 0x56, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00};
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), expected);
}

TEST(Frame, DecodesWhatItEncodes) {
  for (const std::uint32_t size : {0u, 1u, 255u, 256u, 32767u, 32768u}) {
    for (std::uint16_t handles = 0; handles <= kMaxHandles; ++handles) {
      const auto header = DecodeFrame(Packet({65535, size, handles}), handles);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->type, 65535);
      EXPECT_EQ(header->payload_size, size);
      EXPECT_EQ(header->handle_count, handles);
    }
  }
}

TEST(Frame, CutAtEveryByteIsDataLoss) {
  const std::vector<std::uint8_t> packet = Packet({7, 40, 1});
  for (std::size_t size = 0; size < packet.size(); ++size) {
    const auto header =
        DecodeFrame(absl::MakeConstSpan(packet.data(), size), 1);
    EXPECT_TRUE(absl::IsDataLoss(header.status())) << size;
  }
}

TEST(Frame, SaysHowMuchItStatesAndHowMuchThereIs) {
  std::vector<std::uint8_t> packet = Packet({7, 40, 1});
  packet.pop_back();
  EXPECT_EQ(DecodeFrame(packet, 1).status().message(),
            "it states 40 bytes of payload and has 39; at most 32768 may be "
            "sent");
  packet.push_back(0);
  EXPECT_EQ(DecodeFrame(packet, 2).status().message(),
            "it states 1 handles and came with 2; at most 16 may be sent");
}

TEST(Frame, EveryFlippedBitIsDataLossOrAnotherType) {
  const std::vector<std::uint8_t> good = Packet({7, 40, 1});
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderSize; ++bit) {
    std::vector<std::uint8_t> packet = good;
    packet[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const auto header = DecodeFrame(packet, 1);
    const bool is_type = bit / 8 == 6 || bit / 8 == 7;
    if (is_type) {
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->type, 7 ^ (1u << (bit - 48)));
    } else {
      EXPECT_TRUE(absl::IsDataLoss(header.status())) << "bit " << bit;
    }
  }
}

TEST(Frame, ANewerVersionIsNamed) {
  std::vector<std::uint8_t> packet = Packet({7, 0, 0});
  packet[4] = 2;
  const auto header = DecodeFrame(packet, 0);
  EXPECT_TRUE(absl::IsDataLoss(header.status()));
  EXPECT_NE(header.status().message().find("version is 2"), std::string::npos);
}

TEST(Frame, AnotherNumberOfHandlesIsDataLoss) {
  for (std::size_t came = 0; came <= 253; ++came) {
    const auto header = DecodeFrame(Packet({7, 4, 3}), came);
    EXPECT_EQ(header.ok(), came == 3) << came;
  }
}

TEST(Frame, MoreHandlesThanTheLimitAreDataLossEvenWhenStated) {
  EXPECT_TRUE(absl::IsDataLoss(DecodeFrame(Packet({7, 4, 17}), 17).status()));
}

TEST(Frame, APayloadOverTheLimitIsDataLossEvenWhenStated) {
  const std::uint32_t size = kMaxPayload + 1;
  EXPECT_TRUE(absl::IsDataLoss(DecodeFrame(Packet({7, size, 0}), 0).status()));
}

TEST(Frame, RandomBytesAreDataLoss) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> packet(random() % 64);
    for (std::uint8_t& byte : packet)
      byte = static_cast<std::uint8_t>(random());
    // Half of them with the right magic and version, to get further.
    if (i % 2 == 0 && packet.size() >= 6) {
      const auto good = EncodeFrameHeader({});
      std::copy(good.begin(), good.begin() + 6, packet.begin());
    }
    const std::size_t handles = random() % 20;
    const auto header = DecodeFrame(packet, handles);
    if (header.ok()) {
      EXPECT_EQ(header->payload_size + kFrameHeaderSize, packet.size());
      EXPECT_EQ(header->handle_count, handles);
    } else {
      EXPECT_TRUE(absl::IsDataLoss(header.status()));
    }
  }
}

}  // namespace
}  // namespace vmm::platform
