#include "vmm/pool/internal/thread_cache.h"

#include <bit>
#include <new>
#include <utility>

#include "platform/os/thread_value.h"

namespace vmm::pool {

void BlockCache::TakeAll(BlockList& to, std::uint64_t least) {
  if (bytes_ < least) return;
  for (std::size_t word = 0; word < filled_.size(); ++word) {
    for (std::uint64_t left = filled_[word]; left != 0; left &= left - 1) {
      Bin& bin =
          bins_[word * 64 + static_cast<std::size_t>(std::countr_zero(left))];
      if (bin.key.size < least) continue;
      for (BlockList blocks = Take(bin); !blocks.empty();) {
        to.Push(blocks.Pop());
      }
    }
  }
}

// The caches of one thread, by the pool they belong to. When the thread ends
// they stay with their pools, whose next new thread takes them over.
class ThreadCaches::OfThread {
 public:
  OfThread() = default;
  ~OfThread() {
    for (const Entry& entry : entries_) {
      entry.cache->orphaned_.store(true, std::memory_order_release);
    }
  }

  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;

  // The calling thread's; null where the system keeps none for it.
  static OfThread* Get() {
    static const platform::ThreadValue value(
        [](void* ended) { delete static_cast<OfThread*>(ended); });
    if (void* const known = value.Get()) return static_cast<OfThread*>(known);
    auto mine = std::make_unique<OfThread>();
    return value.Set(mine.get()) ? mine.release() : nullptr;
  }

  ThreadCache* Find(std::uint64_t serial) const {
    for (const Entry& entry : entries_) {
      if (entry.serial == serial) return entry.cache.get();
    }
    return nullptr;
  }

  void Add(std::uint64_t serial, std::shared_ptr<ThreadCache> cache) {
    // Only this thread has the caches of pools that have gone.
    std::erase_if(entries_, [](const Entry& entry) {
      return entry.cache.use_count() == 1;
    });
    entries_.push_back({serial, std::move(cache)});
  }

 private:
  struct Entry {
    std::uint64_t serial;
    std::shared_ptr<ThreadCache> cache;
  };
  std::vector<Entry> entries_;
};

constinit thread_local ThreadCaches::Recent ThreadCaches::recent_;

ThreadCaches::ThreadCaches()
    : serial_([] {
        static std::atomic<std::uint64_t> last = 0;
        return ++last;
      }()),
      caches_({std::make_shared<ThreadCache>()}),
      common_(caches_.front()) {}

ThreadCache& ThreadCaches::FindMine() {
  OfThread* const mine = OfThread::Get();
  if (mine == nullptr) return *common_;
  ThreadCache* cache = mine->Find(serial_);
  if (cache == nullptr) {
    platform::MutexLock lock(mutex_);
    std::shared_ptr<ThreadCache> found;
    for (const std::shared_ptr<ThreadCache>& old : caches_) {
      if (old->orphaned_.load(std::memory_order_acquire)) {
        found = old;
        break;
      }
    }
    if (found == nullptr) {
      found = std::make_shared<ThreadCache>();
      found->orphaned_.store(true, std::memory_order_relaxed);
      caches_.push_back(found);
    }
    cache = found.get();
    // Refused memory, this leaves it to the next thread.
    mine->Add(serial_, std::move(found));
    cache->orphaned_.store(false, std::memory_order_relaxed);
  }
  recent_ = {serial_, cache};
  return *cache;
}

ThreadCache& ThreadCaches::FindMineOrCommon() {
  try {
    return FindMine();
  } catch (const std::bad_alloc&) {
    return *common_;
  }
}

}  // namespace vmm::pool
