// The parts of a range of which each gets a dma-buf of its own; internal to
// vmm/memory.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_DMA_BUF_PARTS_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_DMA_BUF_PARTS_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"

namespace vmm {

// In one chunk: bytes from the beginning of the range on.
struct DmaBufPart {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

// OK when the bytes are whole pages of the host, of an allocation of `whole` bytes.
absl::Status CheckDmaBufRange(std::uint64_t offset, std::uint64_t size,
                              std::uint64_t whole, std::uint64_t page);

// [begin, end), cut where chunks of `chunk` bytes end.
std::vector<DmaBufPart> PartsOf(std::uint64_t begin, std::uint64_t end,
                                std::uint64_t chunk);

// [address, address + size), cut where what the driver has mapped ends. REQUIRES:
// a context is current.
absl::StatusOr<std::vector<DmaBufPart>> MappedParts(
    const platform::Driver& driver, CUdeviceptr address, std::uint64_t size);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_DMA_BUF_PARTS_H_
