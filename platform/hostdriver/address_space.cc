#include "platform/hostdriver/address_space.h"

#include <algorithm>
#include <iterator>

#include "platform/hostdriver/physical_memory.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// The entry of `map` that contains `address`, or end(): each is of so many bytes as
// `size_of` says.
template <typename Map, typename SizeOf>
auto Containing(Map& map, CUdeviceptr address, SizeOf size_of) {
  const auto next = map.upper_bound(address);
  if (next == map.begin()) return map.end();
  const auto last = std::prev(next);
  return address - last->first < size_of(last->second) ? last : map.end();
}

// REQUIRES: `needed` is not nothing.
bool Allows(const AccessByDevice& access, int ordinal,
            CUmemAccess_flags needed) {
  return (static_cast<unsigned>(AccessFor(access, ordinal)) &
          static_cast<unsigned>(needed)) == static_cast<unsigned>(needed);
}

}  // namespace

bool IsAccess(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
         flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUmemAccess_flags AccessFor(const AccessByDevice& access, int ordinal) {
  const auto found = access.find(ordinal);
  return found == access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
}

std::map<CUdeviceptr, Mapping>::iterator MappingAt(State& state,
                                                   CUdeviceptr address) {
  return Containing(state.mappings, address,
                    [](const Mapping& one) { return one.memory->size; });
}

std::map<CUdeviceptr, Block>::iterator BlockAt(State& state,
                                               CUdeviceptr address) {
  return Containing(state.blocks, address,
                    [](const Block& one) { return one.size; });
}

std::shared_ptr<Segment> SegmentAt(State& state, CUdeviceptr address) {
  const auto found = Containing(
      state.segments, address,
      [](const std::shared_ptr<Segment>& one) { return one->memory->size; });
  return found == state.segments.end() ? nullptr : found->second;
}

std::map<CUdeviceptr, std::size_t>::const_iterator ReservationAt(
    const State& state, CUdeviceptr address) {
  return Containing(state.reservations, address,
                    [](std::size_t size) { return size; });
}

CUresult Resolve(State& state, CUdeviceptr address, std::size_t size,
                 int ordinal, CUmemAccess_flags needed, When when,
                 std::vector<Piece>* pieces) {
  while (size > 0) {
    Memory* memory = nullptr;
    std::size_t offset = 0;  // In the memory.
    std::size_t end = 0;
    const AccessByDevice* access = nullptr;  // Null: each device has it.
    if (const auto mapping = MappingAt(state, address);
        mapping != state.mappings.end()) {
      memory = mapping->second.memory.get();
      offset = address - mapping->first;
      end = memory->size;
      access = &mapping->second.access;
    } else if (const auto segment =
                   when == When::kRunning ? SegmentAt(state, address) : nullptr;
               segment != nullptr) {
      memory = segment->memory.get();
      offset = address - segment->start;
      end = memory->size;
      access = &segment->pool->access;
    } else if (const auto block = BlockAt(state, address);
               block != state.blocks.end()) {
      memory = block->second.memory.get();
      offset = block->second.offset + (address - block->first);
      end = block->second.offset + block->second.size;
      if (block->second.pool != nullptr) access = &block->second.pool->access;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (access != nullptr && !Allows(*access, ordinal, needed)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Shadow> shadow = ShadowOf(*memory);
    if (shadow == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
    const std::size_t length = std::min(size, end - offset);
    pieces->push_back({shadow->data() + offset, length, shadow});
    address += length;
    size -= length;
  }
  return CUDA_SUCCESS;
}

bool CpuMayUse(State& state, const void* data, std::size_t size, bool write) {
  const auto start = reinterpret_cast<CUdeviceptr>(data);
  const CUdeviceptr end = start + size;
  for (const auto& [at, length] : state.reservations) {
    if (at >= end || at + length <= start) continue;
    for (CUdeviceptr p = std::max(start, at); p < std::min(end, at + length);) {
      const auto mapping = MappingAt(state, p);
      if (mapping == state.mappings.end() ||
          mapping->second.cpu == CpuAccess::kNone ||
          (write && mapping->second.cpu != CpuAccess::kReadWrite)) {
        return false;
      }
      p = mapping->first + mapping->second.memory->size;
    }
  }
  for (const auto& [at, segment] : state.segments) {
    if (at < end && at + segment->memory->size > start) return false;
  }
  for (const auto& [at, block] : state.blocks) {
    if (!block.on_host && at < end && at + block.reserved > start) return false;
  }
  return true;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, std::size_t size,
                                     std::size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemAddressReserve"));
  if (address == nullptr || flags != 0 || size == 0 ||
      size % kGranularity != 0 || (alignment & (alignment - 1)) != 0 ||
      hint % std::max(alignment, kGranularity) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  const CUdeviceptr start =
      ReserveAddresses(size, std::max(alignment, kGranularity), hint);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state.reservations[start] = size;
  *address = start;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  RETURN_IF_FAILED(Enter("cuMemAddressFree"));
  State& state = GetState();
  const Lock lock(state.mu);
  const auto found = state.reservations.find(address);
  if (found == state.reservations.end() || found->second != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapping = state.mappings.lower_bound(address);
  if (mapping != state.mappings.end() && mapping->first < address + size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.reservations.erase(found);
  FreeAddresses(address, size);
  return CUDA_SUCCESS;
}
