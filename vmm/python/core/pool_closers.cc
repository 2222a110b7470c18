#include "vmm/python/core/pool_closers.h"

#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "vmm/python/core/detach.h"
#include "vmm/python/core/gil.h"
#include "vmm/python/core/interpreter_end.h"

namespace vmm::python {
namespace {

// How long the GPU is waited for at once, for all streams together: an idle one
// answers within microseconds.
constexpr std::int64_t kSoonNs = 5'000'000;

// The same of a thread that waits. The end of the interpreter waits for it.
constexpr std::int64_t kAskForNs = 50'000'000;

// When that is asked again which nobody could say.
constexpr std::chrono::milliseconds kAskAgain{10};

// CUresults of calls that a capture does not allow: from
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to ..._WRONG_THREAD.
constexpr std::int32_t kFirstOfCapture = 900;
constexpr std::int32_t kLastOfCapture = 908;
constexpr std::int32_t kNoDriverCall = -1;

// Whether a release of a stream that failed like this may do so no more later:
// the GPU has not passed its work, the stream is captured into a graph, or the
// host lacks memory. A driver that fails otherwise never knows.
bool MayBeKnownLater(vmmshare_status status, std::int32_t cuda_result) {
  if (cuda_result >= kFirstOfCapture && cuda_result <= kLastOfCapture) {
    return true;
  }
  if (status == VMMSHARE_FAILED_PRECONDITION) {
    return cuda_result == kNoDriverCall;
  }
  return status == VMMSHARE_DEADLINE_EXCEEDED ||
         status == VMMSHARE_RESOURCE_EXHAUSTED;
}

enum class Passed {
  kYes,  // Or that will never be known.
  kNotYet,
  kNotAsked,  // The interpreter ends.
};

// Whether the GPU has passed what is on the stream.
Passed LookFor(vmmshare_pool* pool, const StreamUse& use,
               std::int64_t timeout_ns) {
  void* const stream = use.Current();
  if (stream == nullptr) return Passed::kYes;
  const NotYetTheEnd stays;
  if (MayBeGone(stream)) return Passed::kNotAsked;
  vmmshare_error* error = nullptr;
  const vmmshare_status status =
      vmmshare_pool_release_stream(pool, stream, timeout_ns, &error);
  const std::int32_t cuda_result = vmmshare_error_cuda_result(error);
  vmmshare_error_free(error);
  return MayBeKnownLater(status, cuda_result) ? Passed::kNotYet : Passed::kYes;
}

}  // namespace

void PoolCloser::Streams::Add(StreamUse use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_[use.stream] = use;
}

void PoolCloser::Streams::PutBack(StreamUse use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_.emplace(use.stream, use);
}

std::optional<StreamUse> PoolCloser::Streams::Take(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto node = last_.extract(stream);
  return node.empty() ? std::nullopt : std::optional(node.mapped());
}

std::vector<StreamUse> PoolCloser::Streams::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StreamUse> uses;
  for (const auto& [stream, use] : last_) uses.push_back(use);
  last_.clear();
  return uses;
}

void PoolCloser::GoesBackAfter(const std::shared_ptr<vmmshare_pool>& pool,
                               StreamUse use) {
  const auto* const closer = std::get_deleter<PoolCloser>(pool);
  // In a forked child nothing goes back, and the lock may be taken for ever.
  if (closer->made_.is_still_here()) closer->streams_->Add(use);
}

bool PoolCloser::Forget(const std::shared_ptr<vmmshare_pool>& pool,
                        void* stream) {
  const auto* const closer = std::get_deleter<PoolCloser>(pool);
  if (!closer->made_.is_still_here()) return true;
  const std::optional<StreamUse> before = closer->streams_->Take(stream);
  const Passed passed = LookFor(pool.get(), StreamUse::Now(stream), 0);
  // Where the interpreter ends the pool's memory stays for it, and nobody asks.
  if (passed != Passed::kYes && before.has_value()) {
    closer->streams_->PutBack(*before);
  }
  return passed != Passed::kNotYet;
}

void PoolCloser::operator()(vmmshare_pool* pool) const {
  if (!made_.is_still_here()) {
    vmmshare_pool_close(pool);
    return;
  }
  std::vector<StreamUse> uses = streams_->Take();
  for (; !uses.empty(); uses.pop_back()) {
    const Passed passed = LookFor(pool, uses.back(), kSoonNs);
    if (passed == Passed::kNotAsked) return;
    if (passed == Passed::kNotYet) break;
  }
  if (uses.empty()) {
    vmmshare_pool_close(pool);
    return;
  }
  try {
    Detach("vmmshare-free", [pool, uses = std::move(uses)] {
      for (const StreamUse& use : uses) {
        Passed passed;
        while ((passed = LookFor(pool, use, kAskForNs)) == Passed::kNotYet) {
          std::this_thread::sleep_for(kAskAgain);
        }
        if (passed == Passed::kNotAsked) return;
      }
      vmmshare_pool_close(pool);
    });
  } catch (const std::system_error&) {
    // Rather kept for good than unmapped under the GPU.
  }
}

void ImportedPoolCloser::operator()(vmmshare_imported_pool* pool) const {
  if (WithoutGil::IsHere() || !made_.is_still_here()) {
    vmmshare_imported_pool_close(pool);
    return;
  }
  try {
    Detach("vmmshare-free", [pool] { vmmshare_imported_pool_close(pool); });
  } catch (const std::system_error&) {
    // Rather waited for than held, by its owner's book, until this process ends.
    vmmshare_imported_pool_close(pool);
  }
}

}  // namespace vmm::python
