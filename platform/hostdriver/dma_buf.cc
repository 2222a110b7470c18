// cuMemGetHandleForAddressRange: a descriptor that stands in for a dma-buf.
#include <memory>
#include <optional>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// The memory that a descriptor of the `size` bytes at `address` is of; null where
// there can be none. REQUIRES: the lock is held.
//
// Measured on 580: the range has to begin in a block that cuMemAlloc() of this
// process made, or where a pool of its got memory from the driver, and to end in
// that memory, in whosever block. What another process made and this one opened is
// refused. Documented: or the whole range has to be mapped; the host's has none.
std::shared_ptr<Memory> MemoryOfAll(State& state, CUdeviceptr address,
                                    std::size_t size) {
  auto block = BlockAt(state, address);
  if (block == state.blocks.end()) {
    // A page may begin with what was freed, beside a block that is there.
    const auto next = state.blocks.upper_bound(address);
    if (next != state.blocks.end() && !next->second.on_host &&
        next->first - next->second.offset <= address) {
      block = next;
    }
  }
  if (block != state.blocks.end()) {
    const Block& of = block->second;
    const CUdeviceptr begin = block->first - of.offset;
    const bool ours = !of.on_host && of.opens == 0 &&
                      (of.pool == nullptr || !of.pool->imported);
    const bool begins_there = of.pool == nullptr || address == begin;
    const bool ends_there = size <= begin + of.memory->size - address;
    return ours && begins_there && ends_there ? of.memory : nullptr;
  }
  const auto first = MappingAt(state, address);
  for (CUdeviceptr at = address; at < address + size;) {
    const auto mapping = MappingAt(state, at);
    if (mapping == state.mappings.end()) return nullptr;
    at = mapping->first + mapping->second.memory->size;
  }
  const std::shared_ptr<Memory>& memory = first->second.memory;
  return memory->label.OnDevice() ? memory : nullptr;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemGetHandleForAddressRange(void* handle,
                                               CUdeviceptr address,
                                               std::size_t size,
                                               CUmemRangeHandleType type,
                                               unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemGetHandleForAddressRange"));
  constexpr std::size_t kHostPage = 4096;
  constexpr unsigned long long kPcie = 1;  // Newer than some toolkits.
  if (handle == nullptr || address == 0 || size == 0 ||
      address % kHostPage != 0 || size % kHostPage != 0 ||
      size > UINT64_MAX - address ||
      type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || (flags & ~kPcie) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  // As a H100 (580) answers.
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (!state.config.dma_buf) return CUDA_ERROR_NOT_SUPPORTED;
  const std::shared_ptr<Memory> memory = MemoryOfAll(state, address, size);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Of several chunks only the first is covered, as others have found.
  const std::optional<OsMemory> copy = DuplicateMemory(memory->os);
  if (!copy) return CUDA_ERROR_OPERATING_SYSTEM;
  StoreExported(*copy, handle);
  return CUDA_SUCCESS;
}
