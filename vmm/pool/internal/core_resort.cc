// What a pool does when neither its heaps nor the driver have memory: whatever
// was freed serves, if it takes a wait on the GPU or of the host.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/pools_of_process.h"

namespace vmm::pool {
namespace {

// How long a request may wait for the GPU before it is refused.
constexpr absl::Duration kLongestWait = absl::Seconds(10);

}  // namespace

bool Core::GiveUpAll(absl::Span<const std::uint64_t> least, bool asks_others) {
  ReleaseIdle(0, least);
  bool has_asked_others = false;
  if (asks_others) {
    const Unlocked unlocked(*this);
    has_asked_others = PoolsOfProcess::Get().GiveUpIdle(this);
  }
  // What is given back counts until it is.
  while (growing_ || releasing_ != 0) changed_.Wait(mutex_);
  return has_asked_others;
}

absl::Status Core::CannotGrow(const Request& request, const absl::Status& why) {
  if (!absl::IsResourceExhausted(why)) return why;
  std::uint64_t free = 0;
  std::size_t segments = 0;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Range>& range : heap->ranges()) {
      segments += range->segments().size();
      free += range->free();
    }
  }
  return platform::Annotate(
      why,
      absl::StrCat("the pool has no room for ", request.requested,
                   " bytes aligned to ", request.alignment),
      absl::StrCat("Of ", reserved_, " bytes in ", segments, " segments ", free,
                   " are free in pieces, ", BytesWaiting(),
                   " wait for a stream and ", held_.bytes(),
                   " for peers to give them back. Free blocks, ask peers for "
                   "theirs, or give the pool more: a larger cap, or memory "
                   "that others have"));
}

absl::StatusOr<Block*> Core::LastResort(const Request& request) {
  const Deadline deadline = Deadline::In(kLongestWait);
  Heap& heap = HeapOf(request);
  absl::Status refused;
  absl::Status failed;  // Of the driver: what kept freed memory from serving.
  bool asks_others = !is_at_cap_;
  // What is no stream cannot be made to wait, nor can one that is captured.
  const bool is_a_stream = request.stream != PassedStream();
  absl::StatusOr<bool> captured = false;
  if (is_a_stream) {
    const Unlocked unlocked(*this);
    captured = IsCaptured(device_.driver(), request.stream);
  }
  if (!captured.ok()) {
    // Such as where no context is current: nothing is captured there.
    last_error_ = captured.status();
    captured = false;
  }
  for (;;) {
    if (absl::Status asked = CollectAll(); !asked.ok()) failed = asked;
    if (Block* const block = heap.Take(request)) return block;
    if (is_a_stream && !*captured) {
      if (Block* const block = ReuseByWaiting(request, &failed)) {
        return block;
      }
    }
    GiveUpAll({}, asks_others);
    absl::StatusOr<Block*> grown = GrowInTurn(request);
    if (grown.ok()) return grown;
    refused = grown.status();
    if (Block* const block = heap.Take(request)) return block;
    if (!absl::IsResourceExhausted(refused)) return refused;
    const bool has_asked = std::exchange(asks_others, !is_at_cap_);
    // Within the cap now; it is the device that is full.
    if (asks_others && !has_asked && !deadline.Passed()) continue;
    // What the driver fails at will not end by waiting.
    if (BytesWaiting() == 0 || !failed.ok() || deadline.Passed()) break;
    if (*captured) {
      return platform::Annotate(
          CannotGrow(request, refused), "the stream is captured into a graph",
          "It cannot be made to wait for what was freed on others: allocate "
          "before the capture");
    }
    if (absl::Status asked = AwaitGpu(deadline); !asked.ok()) {
      failed = std::move(asked);
    }
  }
  return CannotGrow(request, failed.ok() ? refused : failed);
}

}  // namespace vmm::pool
