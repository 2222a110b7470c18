// What the driver says of an address and of a chunk, and how large the blocks of
// cuMemAlloc() are; internal to vmm/memory.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_H_

#include <cuda.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"

namespace vmm {

// cuMemAlloc() takes its memory in blocks of so many bytes, in which it puts small
// allocations side by side (measured).
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{2} << 20;

// "pointer 0x7f0000000000".
std::string DescribePointer(CUdeviceptr pointer);

// The ordinal of the device on which memory of the driver's was made or opened,
// as the driver says.
absl::StatusOr<int> PointerOrdinal(const platform::Driver& driver,
                                   CUdeviceptr pointer);

// What a chunk was made with, and where it is.
absl::StatusOr<CUmemAllocationProp> PropertiesOf(
    const platform::Driver& driver, CUmemGenericAllocationHandle chunk);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_H_
