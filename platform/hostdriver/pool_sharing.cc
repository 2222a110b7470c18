// Pools between processes. What is exported is a token that only names the
// pool; an exported pointer tells where in the exporting process its memory is,
// and the importer opens it there.
#include <cstring>

#include "platform/hostdriver/physical_memory.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// What travels in a CUmemPoolPtrExportData. Comes back from anywhere: every
// field is checked.
struct WirePointer {
  std::uint64_t magic;
  std::uint64_t pool;     // Its share_id.
  std::uint64_t process;  // Where to open the memory,
  std::int64_t memory;    // as what,
  std::uint64_t id;       // and what it then must be.
  std::uint64_t offset;
  std::uint64_t size;
};
static_assert(sizeof(WirePointer) <= sizeof(CUmemPoolPtrExportData));
constexpr std::uint64_t kMagic = 0x3172747068736d76;  // "vmshptr1"

// The segment of an imported pool that is the memory `id`; null if none is.
std::shared_ptr<Segment> FindSegment(State& state, const Pool& pool,
                                     std::uint64_t id) {
  for (const auto& [start, segment] : state.segments) {
    if (segment->pool.get() == &pool && segment->memory->label.id == id) {
      return segment;
    }
  }
  return nullptr;
}

// Opens the memory that `wire` names. Null when there is no such memory.
std::shared_ptr<Memory> Open(const State& state, const Pool& pool,
                             const WirePointer& wire) {
  const std::optional<OpenedMemory> opened =
      OpenOf(wire.process, static_cast<OsMemory>(wire.memory), wire.id);
  if (!opened) return nullptr;
  std::shared_ptr<Memory> memory = AdoptMemory(state, *opened);
  return memory != nullptr &&
                 memory->label.kind == MemoryLabel::Kind::kPooled &&
                 memory->physical == pool.physical
             ? memory
             : nullptr;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemPoolExportToShareableHandle(
    void* shareable, CUmemoryPool id, CUmemAllocationHandleType type,
    unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemPoolExportToShareableHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool =
      FindPool(state, "cuMemPoolExportToShareableHandle", id);
  const auto kind = static_cast<unsigned long long>(type);
  if (shareable == nullptr || pool == nullptr || flags != 0 ||
      (kind != kNativeHandleType && kind != CU_MEM_HANDLE_TYPE_FABRIC) ||
      (pool->handle_types & kind) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured.
  if (kind == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  const std::optional<OsMemory> copy = DuplicateMemory(pool->token);
  if (!copy) return CUDA_ERROR_OPERATING_SYSTEM;
  InheritOnExec(*copy);  // Measured, unlike memory's.
  StoreExported(*copy, shareable);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(
    CUmemoryPool* id, void* handle, CUmemAllocationHandleType type,
    unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemPoolImportFromShareableHandle"));
  if (id == nullptr || flags != 0 ||
      static_cast<unsigned long long>(type) != kNativeHandleType) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::optional<OpenedMemory> opened =
      OpenExported(reinterpret_cast<std::intptr_t>(handle));
  if (!opened) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  auto pool = std::make_shared<Pool>();
  pool->token = opened->memory;  // Closed with it from here on.
  if (opened->label.instance != state.config.machine ||
      opened->label.kind != MemoryLabel::Kind::kPool) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured: the same pool again is the same one here.
  for (const auto& [known_id, known] : state.pools) {
    if (known->imported && known->share_id == opened->label.id) {
      *id = known_id;
      return CUDA_SUCCESS;
    }
  }
  pool->imported = true;
  pool->share_id = opened->label.id;
  pool->physical = state.PhysicalOf(opened->label.uuid);
  pool->device = state.OrdinalOf(pool->physical);
  if (pool->device >= 0) {
    // Documented: for its own device only, whatever the exporter has set.
    pool->access[pool->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  pool->id = reinterpret_cast<CUmemoryPool>(state.NewHandle());
  *id = pool->id;
  state.pools[pool->id] = std::move(pool);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData* data,
                                        CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuMemPoolExportPointer"));
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  const auto block = state.blocks.find(address);
  if (block == state.blocks.end() || block->second.pool == nullptr ||
      block->second.pool->handle_types == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Memory& memory = *block->second.memory;
  const WirePointer wire{kMagic,
                         block->second.pool->share_id,
                         ProcessNumber(),
                         memory.os,
                         memory.label.id,
                         block->second.offset,
                         block->second.size};
  std::memset(data, 0, sizeof(*data));
  std::memcpy(data, &wire, sizeof(wire));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool id,
                                        CUmemPoolPtrExportData* data) {
  RETURN_IF_FAILED(Enter("cuMemPoolImportPointer"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool =
      FindPool(state, "cuMemPoolImportPointer", id);
  if (address == nullptr || pool == nullptr || data == nullptr ||
      !pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  WirePointer wire{};
  std::memcpy(&wire, data, sizeof(wire));
  if (wire.magic != kMagic || wire.pool != pool->share_id || wire.size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Segment> segment = FindSegment(state, *pool, wire.id);
  if (segment == nullptr) {
    std::shared_ptr<Memory> memory = Open(state, *pool, wire);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    segment = AddSegment(state, pool, std::move(memory));
    if (segment == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Measured: the same pointer again is at the same address, and is not counted.
  if (const auto block = state.blocks.find(segment->start + wire.offset);
      block != state.blocks.end() && block->second.size == wire.size) {
    *address = block->first;
    return CUDA_SUCCESS;
  }
  if (!IsFree(*segment, wire.offset, wire.size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = MakePooledBlock(state, *segment, wire.offset, wire.size);
  return CUDA_SUCCESS;
}
