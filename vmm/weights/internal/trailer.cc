#include "vmm/weights/internal/trailer.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::weights {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'V', 'M', 'M', 'S',
                                                'W', 'E', 'N', 'D'};
constexpr std::uint16_t kVersion = 1;

}  // namespace

std::vector<std::uint8_t> EncodeTrailer(const Trailer& trailer) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.PutBytes(kMagic);
  out.Put<std::uint16_t>(kVersion);
  out.PutZeros(6);
  out.Put<std::uint64_t>(trailer.manifest_offset);
  out.Put<std::uint64_t>(trailer.manifest_bytes);
  out.PutZeros(4);
  out.Put<std::uint32_t>(Crc32c(bytes));
  return bytes;
}

absl::StatusOr<Trailer> DecodeTrailer(absl::Span<const std::uint8_t> bytes,
                                      std::uint64_t size) {
  WireReader in(bytes);
  std::array<std::uint8_t, kMagic.size()> magic{};
  in.TakeBytes(absl::MakeSpan(magic));
  if (bytes.size() != kTrailerBytes || magic != kMagic) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ", size,
        " bytes of memory hold no sealed tensor set: it is still being "
        "written, its writer ended before it was complete, or it is something "
        "else"));
  }
  const auto version = in.Take<std::uint16_t>();
  if (version > kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the tensor set has format version ", version,
                     "; this vmmshare reads ", kVersion));
  }
  const bool first_zeros = in.TakeZeros(6);
  Trailer trailer;
  trailer.manifest_offset = in.Take<std::uint64_t>();
  trailer.manifest_bytes = in.Take<std::uint64_t>();
  const bool zeros = in.TakeZeros(4) && first_zeros;
  if (version != kVersion || !zeros || !TrailingCrc32c(bytes).is_right()) {
    return absl::InvalidArgumentError(
        "the end of the tensor set is damaged: its checksum is another");
  }
  if (trailer.manifest_bytes > kMaxManifestBytes || size < kTrailerBytes ||
      trailer.manifest_offset > size - kTrailerBytes ||
      trailer.manifest_bytes > size - kTrailerBytes - trailer.manifest_offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor set's manifest is said to have ", trailer.manifest_bytes,
        " bytes at ", trailer.manifest_offset, ", in ", size, " of memory"));
  }
  return trailer;
}

}  // namespace vmm::weights
