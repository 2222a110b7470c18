// The text of the kernel that takes checksums; internal to vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_TEXT_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_TEXT_H_

namespace vmm::weights {

// What a warp takes at once: 32 rows of 512 bytes, 16 of each a lane.
inline constexpr int kChecksumTilePower = 14;

// PTX of vmmshare_crc32c_many, whose parameter is a PieceKernel's table. A piece's
// `to` are the registers of its tiles, of 4 bytes each: begun at 0, and not inverted.
// A tile that ends early is taken as if bytes of 0 followed. It stays where it is.
const char* ChecksumText();

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_TEXT_H_
