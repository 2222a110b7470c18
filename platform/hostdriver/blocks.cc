#include "platform/hostdriver/blocks.h"

#include "platform/hostdriver/context.h"
#include "platform/hostdriver/physical_memory.h"
#include "platform/hostdriver/pool.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// Frees the block that starts at `address`, after the context's work.
CUresult FreeAt(CUdeviceptr address, bool on_host) {
  State& state = GetState();
  Lock lock(state.mu);
  std::shared_ptr<Context> current;
  // Measured: it needs none.
  if (CUresult r = CurrentContext(state, &current);
      r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_CONTEXT) {
    return r;
  }
  auto block = state.blocks.find(address);
  if (block == state.blocks.end() || IsHostsAlone(block->second) != on_host ||
      block->second.opens != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (block->second.pool != nullptr) {
    // Documented: taken to be unused by now; the call does not wait.
    // Measured: the pool counts it as used for ever.
    block->second.pool->used += block->second.reserved;
    FreePooled(state, block, nullptr, {});
    return CUDA_SUCCESS;
  }
  // Work in the block's context may still use it: the real call waits too. Another
  // thread may free the block meanwhile.
  const std::shared_ptr<Context> its = block->second.context;
  const CUresult result = WaitForContext(state, lock, its);
  block = state.blocks.find(address);
  if (block == state.blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  FreeBlock(state, block);
  return result;
}

// Makes a block that the CPU can access at its address: pinned or, with an ordinal
// of a device in `managed_on` and not -1, managed.
CUresult MakeHostBlock(State& state, const std::shared_ptr<Context>& context,
                       std::size_t size, int managed_on, CUdeviceptr* address) {
  constexpr std::size_t kPage = 4096;
  if (size > SIZE_MAX - kPage) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  block.size = size;
  block.reserved = RoundUp(size, kPage);
  block.on_host = true;
  block.is_managed = managed_on >= 0;
  block.context = context;
  RETURN_IF_FAILED(CreateOnHost(state, MemoryLabel::Kind::kHost, block.reserved,
                                &block.memory));
  if (block.is_managed) {
    block.memory->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    block.memory->location.id = managed_on;
  }
  block.buffer_id = state.next_buffer_id++;
  const std::shared_ptr<Shadow> shadow = ShadowOf(*block.memory);
  if (shadow == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(shadow->data());
  state.blocks[*address] = std::move(block);
  return CUDA_SUCCESS;
}

CUresult AllocateOnHost(const char* call, void** data, std::size_t size,
                        unsigned int flags) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  constexpr unsigned int kKnownFlags = CU_MEMHOSTALLOC_PORTABLE |
                                       CU_MEMHOSTALLOC_DEVICEMAP |
                                       CU_MEMHOSTALLOC_WRITECOMBINED;
  if (data == nullptr || (flags & ~kKnownFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (size == 0) {  // Measured: no error.
    *data = nullptr;
    return CUDA_SUCCESS;
  }
  CUdeviceptr address = 0;
  RETURN_IF_FAILED(MakeHostBlock(state, context, size, -1, &address));
  *data = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

}  // namespace

bool IsHostsAlone(const Block& block) {
  return block.on_host && !block.is_managed;
}

bool IsOwnDeviceBlock(const Block& block) {
  return !block.on_host && block.pool == nullptr && block.opens == 0;
}

std::map<CUdeviceptr, Block>::iterator FreeBlock(
    State& state, std::map<CUdeviceptr, Block>::iterator block) {
  if (!block->second.on_host) {
    FreeAddresses(block->first, block->second.reserved);
  }
  return state.blocks.erase(block);
}

void FreeBlocksOf(State& state, const Context& context) {
  for (auto at = state.blocks.begin(); at != state.blocks.end();) {
    at = at->second.context.get() == &context ? FreeBlock(state, at)
                                              : std::next(at);
  }
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
  RETURN_IF_FAILED(Enter("cuMemGetInfo"));
  State& state = GetState();
  std::uint64_t budget = 0;
  Uuid uuid{};
  {
    const Lock lock(state.mu);
    std::shared_ptr<Context> context;
    RETURN_IF_FAILED(CurrentContext(state, &context));
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    budget = state.config.memory;
    uuid = state.config.uuids[state.visible[context->device]];
  }
  const std::uint64_t held = BytesHeld(state.config.machine, uuid);
  *total = budget;
  *free = held < budget ? budget - held : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t size) {
  RETURN_IF_FAILED(Enter("cuMemAlloc"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > state.config.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  block.size = size;
  block.reserved = RoundUp(size, kGranularity);
  block.context = context;
  RETURN_IF_FAILED(CreateOnDevice(state, context->device,
                                  MemoryLabel::Kind::kBlock, false, 0,
                                  block.reserved, &block.memory));
  block.buffer_id = state.next_buffer_id++;
  const CUdeviceptr start = ReserveAddresses(block.reserved, kGranularity, 0);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state.blocks[start] = std::move(block);
  *address = start;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuMemFree"));
  if (address == 0) return CUDA_SUCCESS;
  return FreeAt(address, /*on_host=*/false);
}

// Managed memory, as far as a program that shares memory has to tell it from
// others: made, asked after, copied, freed. Nothing moves: both the CPU and the
// device have it where it is. Taken from the documentation, not measured.
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, std::size_t size,
                                   unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuMemAllocManaged"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (address == nullptr || size == 0 ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return MakeHostBlock(state, context, size, context->device, address);
}

CUresult CUDAAPI cuMemHostAlloc(void** data, std::size_t size,
                                unsigned int flags) {
  return AllocateOnHost("cuMemHostAlloc", data, size, flags);
}

CUresult CUDAAPI cuMemAllocHost(void** data, std::size_t size) {
  return AllocateOnHost("cuMemAllocHost", data, size, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* data) {
  RETURN_IF_FAILED(Enter("cuMemFreeHost"));
  if (data == nullptr) return CUDA_SUCCESS;
  return FreeAt(reinterpret_cast<CUdeviceptr>(data), /*on_host=*/true);
}
