// BlockCache: freed blocks, ready to be handed out again; ThreadCaches: one
// for each thread of a program; internal to vmm/.
//
// A cache answers only requests of exactly the size of a block that it holds,
// on the stream on which that was freed: so that the GPU's order makes reuse
// safe and nothing has to be computed. Programs ask for the same sizes again
// and again.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_THREAD_CACHE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_THREAD_CACHE_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/mutex.h"
#include "vmm/pool/internal/block.h"

namespace vmm::pool {

// What a block is free for.
struct CacheKey {
  std::uint64_t size = 0;  // Bytes, as taken from the heap.
  CUstream stream = nullptr;
  std::uint32_t domain = 0;
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

// Thread-compatible.
class BlockCache {
 public:
  // With room for blocks of 2^bits keys, more or less: two that meet in a place
  // drive each other out.
  explicit BlockCache(unsigned bits)
      : shift_(64 - bits),
        bins_(std::size_t{1} << bits),
        filled_((bins_.size() + 63) / 64) {}

  // Null when it holds none for `key`.
  Block* Pop(const CacheKey& key) {
    Bin& bin = BinOf(key);
    if (bin.blocks.empty() || !(bin.key == key)) return nullptr;
    bytes_ -= key.size;
    Block* const block = bin.blocks.Pop();
    if (bin.blocks.empty()) Mark(bin, false);
    return block;
  }

  // False when the place for `key` is taken by another one's blocks.
  bool Push(const CacheKey& key, Block* block) {
    Bin& bin = BinOf(key);
    if (!(bin.key == key)) {
      if (!bin.blocks.empty()) return false;
      bin.key = key;
    }
    if (bin.blocks.empty()) Mark(bin, true);
    bin.blocks.Push(block);
    bytes_ += key.size;
    return true;
  }

  // Empties the place for `key`, whoever's blocks are there.
  BlockList TakeBin(const CacheKey& key) { return Take(BinOf(key)); }
  // Takes all whose blocks have `least` bytes and more, and adds them to `to`.
  void TakeAll(BlockList& to, std::uint64_t least = 0);

  // How many blocks Push() and Pop() of `key` have.
  std::uint32_t CountOf(const CacheKey& key) {
    const Bin& bin = BinOf(key);
    return bin.key == key ? bin.blocks.size() : 0;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Bin {
    CacheKey key;
    BlockList blocks;
  };

  // Says whether it has blocks: so that who takes all looks at these only.
  void Mark(const Bin& bin, bool filled) {
    const auto at = static_cast<std::size_t>(&bin - bins_.data());
    const std::uint64_t bit = std::uint64_t{1} << at % 64;
    filled_[at / 64] =
        filled ? filled_[at / 64] | bit : filled_[at / 64] & ~bit;
  }
  BlockList Take(Bin& bin) {
    bytes_ -= bin.key.size * bin.blocks.size();
    Mark(bin, false);
    return std::exchange(bin.blocks, BlockList());
  }
  Bin& BinOf(const CacheKey& key) {
    const std::uint64_t mixed =
        ((key.size >> 8) ^ (reinterpret_cast<std::uintptr_t>(key.stream) >> 4) ^
         (std::uint64_t{key.domain} << 32)) *
        0x9E3779B97F4A7C15u;
    return bins_[mixed >> shift_];
  }

  unsigned shift_;
  std::vector<Bin> bins_;
  std::vector<std::uint64_t> filled_;  // A bit a bin.
  std::uint64_t bytes_ = 0;
};

// A thread's own. Others lock it too, to count and to reclaim: so seldom that
// the lock is one uncontended exchange for the thread.
class ThreadCache {
 public:
  // Holds the cache while it lives.
  class Lock {
   public:
    explicit Lock(ThreadCache& cache) : cache_(cache) {
      while (cache_.busy_.exchange(true, std::memory_order_acquire)) {
        std::this_thread::yield();
      }
    }
    ~Lock() { cache_.busy_.store(false, std::memory_order_release); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    ThreadCache& cache_;
  };

  // Use under a Lock.
  BlockCache blocks{7};
  // What passed through this cache. Live is what was allocated less what was
  // freed, over all caches: a block may be freed by another thread.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t requested = 0;  // Bytes, modulo 2^64: more may be freed here.

 private:
  friend class ThreadCaches;
  std::atomic<bool> busy_ = false;
  std::atomic<bool> orphaned_ = false;  // Its thread has ended.
};

// Thread-safe.
class ThreadCaches {
 public:
  ThreadCaches();

  // The calling thread's. Valid until the thread or this object ends.
  ThreadCache& Mine() {
    const Recent& recent = recent_;
    return recent.serial == serial_ ? *recent.cache : FindMine();
  }
  // The same; where the host lacks memory for the thread's first, one that all
  // such threads have.
  ThreadCache& MineOrCommon() {
    const Recent& recent = recent_;
    return recent.serial == serial_ ? *recent.cache : FindMineOrCommon();
  }

  // Calls `visit` with every thread's cache, locked.
  template <typename Visitor>
  void ForEach(const Visitor& visit) {
    platform::MutexLock lock(mutex_);
    for (const std::shared_ptr<ThreadCache>& cache : caches_) {
      const ThreadCache::Lock locked(*cache);
      visit(*cache);
    }
  }

 private:
  // The cache that the thread used last: most programs have one pool. It may be
  // used as long as its pool lives, even if another thread has taken it over.
  struct Recent {
    std::uint64_t serial = 0;
    ThreadCache* cache = nullptr;
  };
  class OfThread;

  ThreadCache& FindMine();
  ThreadCache& FindMineOrCommon();

  static thread_local Recent recent_;

  const std::uint64_t serial_;  // Never that of another object.
  platform::Mutex mutex_;
  std::vector<std::shared_ptr<ThreadCache>> caches_ ABSL_GUARDED_BY(mutex_);
  // Of all threads for which the system keeps no value, or the host has no memory.
  const std::shared_ptr<ThreadCache> common_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_THREAD_CACHE_H_
