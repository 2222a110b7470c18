#include "platform/ipc/frame.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/wire.h"

namespace vmm::platform {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic = {'V', 'M', 'S', 'H'};

void Store(std::uint8_t* at, std::uint32_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    at[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

}  // namespace

absl::Status CheckSendable(absl::Span<const std::uint8_t> payload,
                           absl::Span<const OsHandle* const> handles) {
  if (payload.size() > kMaxPayload || handles.size() > kMaxHandles) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", payload.size(), " bytes and ",
                     handles.size(), " handles is over the limit of ",
                     kMaxPayload, " bytes and ", kMaxHandles, " handles"));
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr || !handles[i]->has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "handle ", i, " of ", handles.size(), " to send owns nothing"));
    }
  }
  return absl::OkStatus();
}

std::array<std::uint8_t, kFrameHeaderSize> EncodeFrameHeader(
    const FrameHeader& header) {
  std::array<std::uint8_t, kFrameHeaderSize> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  Store(&bytes[4], kFrameVersion, 2);
  Store(&bytes[6], header.type, 2);
  Store(&bytes[8], header.payload_size, 4);
  Store(&bytes[12], header.handle_count, 2);
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrame(absl::Span<const std::uint8_t> packet,
                                        std::size_t handles) {
  if (packet.size() < kFrameHeaderSize) {
    return absl::DataLossError(absl::StrCat("it has ", packet.size(),
                                            " bytes, and the header alone ",
                                            kFrameHeaderSize));
  }
  WireReader reader(packet);
  std::array<std::uint8_t, 4> magic{};
  reader.TakeBytes(absl::MakeSpan(magic));
  if (magic != kMagic) {
    return absl::DataLossError("it does not start with the magic VMSH");
  }
  if (const auto version = reader.Take<std::uint16_t>();
      version != kFrameVersion) {
    return absl::DataLossError(
        absl::StrCat("its frame version is ", version,
                     ", and this build of vmmshare speaks ", kFrameVersion,
                     "; use builds of one version on both sides"));
  }
  FrameHeader header;
  header.type = reader.Take<std::uint16_t>();
  header.payload_size = reader.Take<std::uint32_t>();
  header.handle_count = reader.Take<std::uint16_t>();
  if (header.payload_size > kMaxPayload ||
      header.payload_size != packet.size() - kFrameHeaderSize) {
    return absl::DataLossError(absl::StrCat(
        "it states ", header.payload_size, " bytes of payload and has ",
        packet.size() - kFrameHeaderSize, "; at most ", kMaxPayload,
        " may be sent"));
  }
  if (header.handle_count > kMaxHandles || header.handle_count != handles) {
    return absl::DataLossError(absl::StrCat(
        "it states ", header.handle_count, " handles and came with ", handles,
        "; at most ", kMaxHandles, " may be sent"));
  }
  if (reader.Take<std::uint16_t>() != 0) {
    return absl::DataLossError("the last two bytes of its header are not zero");
  }
  return header;
}

}  // namespace vmm::platform
