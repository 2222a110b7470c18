// What copies and fills do with the bytes that they found.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_PIECES_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "platform/hostdriver/address_space.h"

namespace vmm::hostdriver {

// Copies `from` to `to`, which are of as many bytes.
void CopyPieces(std::vector<Piece> to, std::vector<Piece> from);

// Fills `pieces` with the `unit` bytes at `value`, over and over. Starts at a
// multiple of `unit` from the first byte in every piece: pieces are granular.
void FillPieces(const std::vector<Piece>& pieces, std::uint32_t value,
                std::size_t unit);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_PIECES_H_
