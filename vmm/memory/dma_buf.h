// ExportDmaBufs: a device's memory for network cards and other devices.
//
//   absl::StatusOr<std::vector<DmaBuf>> parts = ExportDmaBufs(memory);
//   for (const DmaBuf& part : *parts)
//     ibv_reg_dmabuf_mr(pd, 0, part.size, memory.address() + part.offset,
//                       static_cast<int>(part.descriptor.get()), access);
//
// A dma-buf is Linux's descriptor of a buffer that its drivers share. A range
// that the driver maps from several chunks is described for the first of them
// alone, without an error, as users of other libraries found; so there is one
// for each chunk. Not for CUDA: processes share memory as transfer.h says.
#ifndef VMMSHARE_VMM_MEMORY_DMA_BUF_H_
#define VMMSHARE_VMM_MEMORY_DMA_BUF_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/allocation.h"

namespace vmm {

// How other devices reach the memory.
enum class DmaBufMapping {
  kDefault,  // As the driver chooses for the platform.
  kPcie,     // Over PCIe (BAR1), also where there is another way.
};

struct DmaBufOptions {
  // Bytes, multiples of the host's page size. Size 0: all from `offset` on.
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  DmaBufMapping mapping = DmaBufMapping::kDefault;
};

// One chunk's part of a range. Move-only. The descriptor keeps the memory, not
// its address.
struct DmaBuf {
  platform::OsHandle descriptor;
  std::uint64_t offset = 0;  // Bytes from the address that was asked for.
  std::uint64_t size = 0;    // Bytes.
};

// The range, one dma-buf for each chunk that it touches, in order. After
// Remap() of other memory they are of the old memory: export anew. On failure
// none stays open. Thread-safe as const calls of Allocation are. Where no context
// of the device is current, or one that was destroyed, its primary context is for
// the length of the call, and is made if nobody has it.
//   INVALID_ARGUMENT     offset or size is no multiple of the host's page size,
//                        or the range leaves the allocation
//   FAILED_PRECONDITION  the memory is unmapped, or of the host; or its device may
//                        not write to it, for a descriptor gives whole access; or
//                        the device says that it has no dma-buf
//   UNIMPLEMENTED        Windows; a driver before CUDA 11.7, or 12.8 for kPcie; a
//                        GPU without that mapping (measured: H100)
//   RESOURCE_EXHAUSTED   no descriptor is left
//   else                 as the driver reports
absl::StatusOr<std::vector<DmaBuf>> ExportDmaBufs(
    const Allocation& memory, const DmaBufOptions& options = {});

// The same of the pages around [address, address + size), whoever made them: a
// block of a Pool, imported memory, cudaMalloc()'s, another library's array. Offsets
// are from the beginning of the first page. Whoever gets a descriptor reaches what
// lies beside the range in its pages too. What is there must stay mapped until this
// returns, and a pool's block be freed only when nobody uses the descriptor. Of a
// stream-ordered pool's memory only what begins where the pool got it from the driver
// has one; the error says where that is.
//   INVALID_ARGUMENT     no bytes; or nothing of the driver's is mapped in all of it
//   FAILED_PRECONDITION  also: managed memory; no device that this process sees
//                        reaches it
absl::StatusOr<std::vector<DmaBuf>> ExportDmaBufs(
    const platform::Driver& driver, CUdeviceptr address, std::uint64_t size,
    DmaBufMapping mapping = DmaBufMapping::kDefault);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_DMA_BUF_H_
