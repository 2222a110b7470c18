// Stream-ordered pools: cuMemPool*, cuMemAllocAsync, cuMemFreeAsync.
//
// A pool takes memory in segments and hands out parts of them. A part that is
// freed waits for the points in streams that its free comes after: until they
// are reached, only the stream that freed it can have it again. Nothing runs
// for a free; the points are looked at when it matters.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_POOL_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "platform/hostdriver/state.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {

struct Pool {
  Pool() = default;
  ~Pool() {
    if (token >= 0) CloseMemory(token);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  CUmemoryPool id = nullptr;
  int device = 0;  // Ordinal; -2: a device this process does not see.
  int physical = -1;
  unsigned long long handle_types = 0;  // 0 for an imported pool.
  bool is_default = false;
  bool imported = false;
  bool destroyed = false;
  // Of a pool that is shared: what its exported handles refer to, and its id.
  OsMemory token = -1;
  std::uint64_t share_id = 0;
  std::size_t max_size = SIZE_MAX;
  AccessByDevice access;

  // Attributes: flags,
  int reuse_follow_events = 1;
  int reuse_opportunistic = 1;
  int reuse_internal_dependencies = 1;
  // and numbers of bytes.
  std::uint64_t release_threshold = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
};

// One memory object of a pool, at addresses of its own.
struct Segment {
  struct Range {  // Free.
    std::size_t size = 0;
    // Who may take it before `after` is reached; null when that is so already.
    std::shared_ptr<Stream> stream;
    std::vector<Stream::Point> after;
  };

  Segment() = default;
  ~Segment() { FreeAddresses(start, memory->size); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Memory> memory;
  CUdeviceptr start = 0;
  std::map<std::size_t, Range> free;  // By offset.
};

// All of these REQUIRE that the lock is held.

// The live pool `id`; null for a null one; stops on any other value.
std::shared_ptr<Pool> FindPool(State& state, const char* call, CUmemoryPool id);

// Hands out `size` bytes of `pool` for use in the order of `stream`.
CUresult TakeFromPool(State& state, const std::shared_ptr<Pool>& pool,
                      std::size_t size, const std::shared_ptr<Stream>& stream,
                      CUdeviceptr* address);
// Gives back a block of a pool, for everybody once `after` is reached, and for
// `stream` at once.
void FreePooled(State& state, std::map<CUdeviceptr, Block>::iterator block,
                std::shared_ptr<Stream> stream,
                std::vector<Stream::Point> after);
// Adds a segment of `memory`, all of it free. Null when there are no addresses.
std::shared_ptr<Segment> AddSegment(State& state,
                                    const std::shared_ptr<Pool>& pool,
                                    std::shared_ptr<Memory> memory);
// Makes [offset, offset + size) of the segment, which must be free, a block.
CUdeviceptr MakePooledBlock(State& state, Segment& segment, std::size_t offset,
                            std::size_t size);
// Whether [offset, offset + size) of the segment is a place for a block, free
// for everybody.
bool IsFree(Segment& segment, std::size_t offset, std::size_t size);

// Gives unused segments back to the system while at least `keep` bytes remain.
void TrimPool(State& state, Pool& pool, std::size_t keep);
// What a call that waits for streams does: each pool gives back what it holds
// above its release threshold.
void ReleaseAtSynchronize(State& state);

// Whether `address` is in memory that a pool had and gave back. REQUIRES: there is no
// block.
bool WasPooled(State& state, CUdeviceptr address);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_POOL_H_
