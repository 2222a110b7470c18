// Legacy CUDA IPC memory: cuIpcGetMemHandle and its opposite. A handle tells
// where in its maker's process the memory is, and the importer opens it there:
// nothing is left behind when either is killed.
#include <cstring>
#include <utility>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/blocks.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/physical_memory.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// What travels in a CUipcMemHandle. Comes back from anywhere: every field is
// checked.
struct WireHandle {
  std::uint64_t magic;
  std::uint64_t process;  // Where to open the memory,
  std::int64_t memory;    // as what,
  std::uint64_t id;       // and what it then must be.
  std::uint64_t size;     // As asked for.
};
static_assert(sizeof(WireHandle) <= sizeof(CUipcMemHandle));
constexpr std::uint64_t kMagic = 0x316d656d68736d76;  // "vmshmem1"

// What `context` has open of the memory `id`, or end().
std::map<CUdeviceptr, Block>::iterator FindOpen(State& state,
                                                const Context& context,
                                                std::uint64_t id) {
  for (auto at = state.blocks.begin(); at != state.blocks.end(); ++at) {
    if (at->second.opens != 0 && at->second.context.get() == &context &&
        at->second.memory->label.id == id) {
      return at;
    }
  }
  return state.blocks.end();
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle,
                                   CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuIpcGetMemHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  // Measured: any address of the block does, and the handle is the block's.
  const auto block = BlockAt(state, address);
  if (handle == nullptr || block == state.blocks.end() ||
      !IsOwnDeviceBlock(block->second)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Memory& memory = *block->second.memory;
  const WireHandle wire{kMagic, ProcessNumber(), memory.os, memory.label.id,
                        block->second.size};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &wire, sizeof(wire));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle,
                                    unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuIpcOpenMemHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  WireHandle wire{};
  std::memcpy(&wire, &handle, sizeof(wire));
  if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      wire.magic != kMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured.
  if (wire.process == ProcessNumber()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const auto open = FindOpen(state, *context, wire.id);
      open != state.blocks.end()) {
    ++open->second.opens;
    *address = open->first;
    return CUDA_SUCCESS;
  }
  const std::optional<OpenedMemory> opened =
      OpenOf(wire.process, static_cast<OsMemory>(wire.memory), wire.id);
  if (!opened) return CUDA_ERROR_INVALID_VALUE;
  Block block;
  block.memory = AdoptMemory(state, *opened);
  if (block.memory == nullptr ||
      block.memory->label.kind != MemoryLabel::Kind::kBlock || wire.size == 0 ||
      wire.size > block.memory->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = state.visible[context->device];
  if (block.memory->physical != device &&
      !state.config.ArePeers(block.memory->physical, device)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  block.size = static_cast<std::size_t>(wire.size);
  block.reserved = block.memory->size;
  block.context = context;
  block.buffer_id = state.next_buffer_id++;
  block.opens = 1;
  const CUdeviceptr start = ReserveAddresses(block.reserved, kGranularity, 0);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state.blocks[start] = std::move(block);
  *address = start;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuIpcCloseMemHandle"));
  State& state = GetState();
  Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  auto open = state.blocks.find(address);
  if (open == state.blocks.end() || open->second.opens == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (open->second.opens > 1) {
    --open->second.opens;
    return CUDA_SUCCESS;
  }
  // Work in the context may still use it. Counted as open meanwhile.
  const std::shared_ptr<Context> its = open->second.context;
  const CUresult result = WaitForContext(state, lock, its);
  open = state.blocks.find(address);
  if (open == state.blocks.end() || open->second.opens == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--open->second.opens > 0) return result;
  FreeBlock(state, open);
  return result;
}
