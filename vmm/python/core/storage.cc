#include "vmm/python/core/storage.h"

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "vmm/python/core/error.h"
#include "vmm/python/core/gil.h"
#include "vmm/python/core/interpreter_end.h"
#include "vmm/python/core/pool_closers.h"
#include "vmm/python/core/stream.h"

namespace vmm::python {
namespace {

// Which streams were released, and when: a later one may have the same value.
class ReleasedStreams {
 public:
  // Never destroyed: consumers let go after the end of main().
  static ReleasedStreams& Get() {
    static auto* const released = new ReleasedStreams;
    return *released;
  }

  std::uint64_t now() const { return count_; }
  void Add(void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_[stream] = ++count_;
  }
  bool HasSince(void* stream, std::uint64_t then) {
    // In a forked child nothing goes back, and the lock may be taken for ever.
    if (count_ == then || !made_.is_still_here()) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = last_.find(stream);
    return found != last_.end() && found->second > then;
  }

 private:
  const MadeHere made_;
  std::atomic<std::uint64_t> count_ = 0;
  std::mutex mutex_;
  std::map<void*, std::uint64_t> last_;
};

// What could not be given back when its time came, because the driver did not
// take a mark on the stream (no context was current on that thread, say). It is
// kept, for the GPU may be using it still, and tried again with what goes next.
class KeptBack {
 public:
  using Try = std::function<bool()>;

  // Never destroyed: consumers let go after the end of main().
  static KeptBack& Get() {
    static auto* const kept = new KeptBack;
    return *kept;
  }

  // `again` is kept only where it has to be: most often it is done at once.
  template <typename Again>
  void GiveBack(const Again& again) {
    const bool given = again();
    if (given && !any_) return;
    // In a forked child all is the parent's, and the lock may be taken for ever.
    if (!made_.is_still_here()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(tries_, [](const Try& one) { return one(); });
    if (!given) tries_.push_back(again);
    any_ = !tries_.empty();
  }

 private:
  const MadeHere made_;
  std::atomic<bool> any_ = false;
  std::mutex mutex_;
  std::vector<Try> tries_;
};

StreamUse OrOfNone(StreamUse use) {
  return use.Current() != nullptr ? use : StreamUse::OfNone();
}

}  // namespace

void StreamWasReleased(void* stream) { ReleasedStreams::Get().Add(stream); }

void Storage::UseOn(void* stream) {
  ComeAfterTheLast(stream, false);
  UsedOn(stream);
}

void Storage::UseOnUnsaid() {
  ComeAfterTheLast(LegacyStream(), true);
  UsedOn(LegacyStream());
}

void Storage::UsedOn(void* stream) {
  used_at_ = ReleasedStreams::Get().now();
  last_stream_ = stream;
}

StreamUse StreamUse::Now(void* stream) {
  return {stream, ReleasedStreams::Get().now()};
}

StreamUse StreamUse::OfNone() { return Now(LegacyStream()); }

void* StreamUse::Current() const {
  return ReleasedStreams::Get().HasSince(stream, at) ? nullptr : stream;
}

void PoolBlock::ComeAfterTheLast(void* stream, bool is_unsaid) {
  constexpr std::int64_t kTenSecondsNs = 10'000'000'000;
  if (is_ordered_) return;
  void* const before = last_use().Current();
  if (before != nullptr && before != stream) {
    vmmshare_error* error = nullptr;
    vmmshare_status status;
    {
      const WithoutGil released;
      status = vmmshare_pool_order(pool.get(), before, stream, kTenSecondsNs,
                                   &error);
    }
    // Beside the capture of a stream that blocks, anybody's, the default one may
    // not be asked; and who only looks at what an array is shall not fail.
    if (status == VMMSHARE_FAILED_PRECONDITION &&
        (is_unsaid || before == LegacyStream())) {
      vmmshare_error_free(error);
    } else if (status != VMMSHARE_OK) {
      Raise(status, error);
    }
  }
  is_ordered_ = !is_unsaid;
}

PoolBlock::~PoolBlock() {
  PoolCloser::GoesBackAfter(pool, OrOfNone(last_use()));
  KeptBack::Get().GiveBack([from = pool, first = address, use = last_use()] {
    void* const on = OrOfNone(use).stream;
    const NotYetTheEnd stays;
    return MayBeGone(on) ||
           vmmshare_pool_free(from.get(), first, on, nullptr) == VMMSHARE_OK;
  });
}

ImportedBlock::~ImportedBlock() {
  if (last_use().Current() == nullptr) {
    vmmshare_block_close(block_);
    return;
  }
  KeptBack::Get().GiveBack([pool = pool_, block = block_, use = last_use()] {
    void* const on = use.Current();
    if (on != nullptr) {
      const NotYetTheEnd stays;
      return MayBeGone(on) ||
             vmmshare_block_close_after(block, on, nullptr) == VMMSHARE_OK;
    }
    vmmshare_block_close(block);
    return true;
  });
}

}  // namespace vmm::python
