// Memory for network cards.
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/memory.h"
#include "vmm/c/pool.h"
#include "vmm/memory/dma_buf.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;

namespace {

absl::StatusOr<const vmm::Allocation*> CreatedHere(
    const vmmshare_memory& memory) {
  if (const auto* own = std::get_if<vmm::Allocation>(&memory.memory)) {
    return own;
  }
  return absl::FailedPreconditionError(
      "the memory was adopted or imported: ask where it was created. Memory of "
      "cudaMalloc() has no such flag. Dma-bufs of any address are made by "
      "vmmshare_dma_bufs(), in Python by dma_bufs() of an array");
}

absl::StatusOr<vmm::DmaBufMapping> MappingOf(std::uint32_t flags) {
  RETURN_IF_ERROR(vmm::c::CheckBits(flags, VMMSHARE_DMA_BUF_PCIE, "flags"));
  return flags == 0 ? vmm::DmaBufMapping::kDefault : vmm::DmaBufMapping::kPcie;
}

// Hands `parts` over. With too little room none, and *count is what is needed.
absl::Status Give(std::vector<vmm::DmaBuf> parts, vmmshare_dma_buf* bufs,
                  std::uint32_t room, std::uint32_t* count) {
  *count = static_cast<std::uint32_t>(parts.size());
  if (parts.size() > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("`room` is ", room, " for ", parts.size(),
                     " dma-bufs. Give room for one a chunk."));
  }
  for (vmm::DmaBuf& part : parts) {
    *bufs++ = {static_cast<int>(std::move(part.descriptor).Relinquish()), 0,
               part.offset, part.size};
  }
  return absl::OkStatus();
}

}  // namespace

vmmshare_status vmmshare_memory_rdma(const vmmshare_memory* memory,
                                     int* capable, vmmshare_text** refusal,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (refusal != nullptr) *refusal = nullptr;
    RETURN_IF_ERROR(Clear(capable, "capable"));
    RETURN_IF_ERROR(Check(memory));
    std::string why;
    bool is_capable = false;
    if (const auto* imported =
            std::get_if<vmm::ImportedAllocation>(&memory->memory)) {
      is_capable = imported->rdma_capable();
    } else {
      ASSIGN_OR_RETURN(const vmm::Allocation* const own, CreatedHere(*memory));
      ASSIGN_OR_RETURN(is_capable, own->IsRdmaCapable());
      why = std::string(own->rdma_refusal().message());
    }
    if (refusal != nullptr) *refusal = new vmmshare_text{std::move(why)};
    *capable = is_capable ? 1 : 0;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_rdma(const vmmshare_pool* pool, int* capable,
                                   vmmshare_text** refusal,
                                   vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (refusal != nullptr) *refusal = nullptr;
    RETURN_IF_ERROR(Clear(capable, "capable"));
    RETURN_IF_ERROR(Check(pool));
    const absl::Status why = pool->pool->rdma_refusal();
    if (refusal != nullptr) {
      *refusal = new vmmshare_text{std::string(why.message())};
    }
    *capable = why.ok() ? 1 : 0;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_memory_dma_bufs(
    const vmmshare_memory* memory, std::uint64_t offset, std::uint64_t size,
    std::uint32_t flags, vmmshare_dma_buf* bufs, std::uint32_t room,
    std::uint32_t* count, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(count, "count"));
    if (room != 0) RETURN_IF_ERROR(CheckGiven(bufs, "bufs"));
    RETURN_IF_ERROR(Check(memory));
    ASSIGN_OR_RETURN(const vmm::DmaBufMapping mapping, MappingOf(flags));
    ASSIGN_OR_RETURN(const vmm::Allocation* const own, CreatedHere(*memory));
    ASSIGN_OR_RETURN(
        std::vector<vmm::DmaBuf> parts,
        vmm::ExportDmaBufs(
            *own, {.offset = offset, .size = size, .mapping = mapping}));
    return Give(std::move(parts), bufs, room, count);
  });
}

vmmshare_status vmmshare_dma_bufs(const vmmshare_driver* driver,
                                  std::uint64_t address, std::uint64_t size,
                                  std::uint32_t flags, vmmshare_dma_buf* bufs,
                                  std::uint32_t room, std::uint32_t* count,
                                  vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(count, "count"));
    if (room != 0) RETURN_IF_ERROR(CheckGiven(bufs, "bufs"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(const vmm::DmaBufMapping mapping, MappingOf(flags));
    ASSIGN_OR_RETURN(
        std::vector<vmm::DmaBuf> parts,
        vmm::ExportDmaBufs(driver->driver, address, size, mapping));
    return Give(std::move(parts), bufs, room, count);
  });
}
