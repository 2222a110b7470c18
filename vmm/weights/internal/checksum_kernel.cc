#include "vmm/weights/internal/checksum_kernel.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "platform/base/crc32c.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/weights/internal/checksum_text.h"
#include "vmm/weights/internal/crc32c_polynomial.h"

namespace vmm::weights {
namespace {

constexpr std::uint64_t kTile = PieceKernel::kTile;
static_assert(kTile == std::uint64_t{1} << kChecksumTilePower);

constexpr platform::Crc32cShift kOverTile =
    platform::MakeCrc32cShift(kChecksumTilePower);

using Backs = std::array<std::uint32_t, kChecksumTilePower>;

// Back(1 << i) of each i.
consteval Backs MakeBacks() {
  Backs backs{};
  for (std::size_t i = 0; i < backs.size(); ++i) backs[i] = Back(1 << i);
  return backs;
}
constexpr Backs kBacks = MakeBacks();

// The registers of a range's tiles, put together.
class Sum {
 public:
  void Add(std::uint32_t tile) {
    state_ = platform::Apply(kOverTile, state_) ^ tile;
  }
  // REQUIRES: all tiles of as many bytes were added.
  std::uint32_t Of(std::uint64_t bytes) const {
    const std::uint64_t missing = (kTile - bytes % kTile) % kTile;
    std::uint32_t state = state_;
    for (std::size_t i = 0; i < kBacks.size(); ++i) {
      if ((missing >> i & 1) != 0) state = Times(state, kBacks[i]);
    }
    return ~state;
  }

 private:
  std::uint32_t state_ = 0xffffffffu;
};

constexpr std::uint64_t Tiles(std::uint64_t bytes) {
  return (bytes + kTile - 1) / kTile;
}

}  // namespace

absl::StatusOr<ChecksumKernel> ChecksumKernel::Load(const Device& device) {
  ASSIGN_OR_RETURN(
      PieceKernel kernel,
      PieceKernel::Load(device, ChecksumText(), "vmmshare_crc32c_many"));
  return ChecksumKernel(device.driver(), std::move(kernel));
}

absl::StatusOr<std::vector<std::uint32_t>> ChecksumKernel::Take(
    absl::Span<const AddressSpan> ranges,
    absl::Span<std::uint32_t> pinned) const {
  std::vector<Sum> sums(ranges.size());
  // What is under way, and of which range each register is.
  std::vector<DevicePiece> pieces;
  std::vector<std::size_t> owners;
  std::size_t used = 0;
  const auto take = [&]() -> absl::Status {
    const absl::Status launched = kernel_.Run(nullptr, pieces);
    // Also after an error: the device may still write there.
    const CUresult r = AwaitDefaultStream(driver_);
    RETURN_IF_ERROR(launched);
    if (r != CUDA_SUCCESS) return driver_.Error(r, "cuStreamSynchronize(0)");
    const std::uint32_t* next = pinned.data();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (std::uint64_t left = Tiles(pieces[i].bytes); left > 0; --left) {
        sums[owners[i]].Add(*next++);
      }
    }
    pieces.clear();
    owners.clear();
    used = 0;
    return absl::OkStatus();
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::uint64_t done = 0; done < ranges[i].size;) {
      if (used == pinned.size()) RETURN_IF_ERROR(take());
      const std::uint64_t bytes =
          std::min(ranges[i].size - done, (pinned.size() - used) * kTile);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's own type.
      const auto to = reinterpret_cast<CUdeviceptr>(pinned.data() + used);
      pieces.push_back({to, ranges[i].base + done, bytes});
      owners.push_back(i);
      used += static_cast<std::size_t>(Tiles(bytes));
      done += bytes;
    }
  }
  if (!pieces.empty()) RETURN_IF_ERROR(take());
  std::vector<std::uint32_t> checksums;
  checksums.reserve(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    checksums.push_back(sums[i].Of(ranges[i].size));
  }
  return checksums;
}

}  // namespace vmm::weights
