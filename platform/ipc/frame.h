// The frame around every message of a channel; internal to platform/.
//
// One packet of the transport is one frame: a header of 16 bytes, then the
// payload. Numbers are little-endian. Handles travel beside the packet.
//
//   offset  size  field
//   0       4     magic: the bytes 56 4D 53 48 ("VMSH")
//   4       2     version of the frame: 1
//   6       2     type of the message, the sender's to choose
//   8       4     bytes of payload: 0 to 32768, and exactly those that follow
//   12      2     number of handles: 0 to 16, and exactly those that came
//   14      2     zero
//   16      ...   payload
//
// The header is never empty, so handles always have a byte to travel with.
#ifndef VMMSHARE_PLATFORM_IPC_FRAME_H_
#define VMMSHARE_PLATFORM_IPC_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"

namespace vmm::platform {

inline constexpr std::size_t kFrameHeaderSize = 16;
inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr std::size_t kMaxFrame = kFrameHeaderSize + kMaxPayload;

struct FrameHeader {
  std::uint16_t type = 0;
  std::uint32_t payload_size = 0;
  std::uint16_t handle_count = 0;
};

// INVALID_ARGUMENT when a message of these would be over the limits, or a handle
// owns nothing.
absl::Status CheckSendable(absl::Span<const std::uint8_t> payload,
                           absl::Span<const OsHandle* const> handles);

std::array<std::uint8_t, kFrameHeaderSize> EncodeFrameHeader(
    const FrameHeader& header);

// The header of `packet`, the whole of a packet that came with `handles`
// handles. DATA_LOSS when anything about it is not as the table says; there is
// no input for which it does more or less than that.
absl::StatusOr<FrameHeader> DecodeFrame(absl::Span<const std::uint8_t> packet,
                                        std::size_t handles);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_FRAME_H_
