// What a subscription does with what its pool's owner sends.
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "platform/base/annotate.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {
namespace {

// How often what has come is taken up again for which there was no descriptor, and
// for how long: nothing tells this process when it has one again.
constexpr absl::Duration kTakeAgainAfter = absl::Milliseconds(50);
constinit std::atomic<std::chrono::milliseconds> take_again_for{
    std::chrono::seconds(10)};

}  // namespace

void SetTakeAgainFor(std::chrono::milliseconds time) { take_again_for = time; }

void Subscription::ReceiveLoop(const SharedTableView& view) {
  RelaxCaptureForThread(driver_);
  absl::Time wait_until = absl::InfinitePast();
  std::optional<Deadline> lacking_until;
  for (;;) {
    absl::StatusOr<Notice> notice = ReceiveNotice(channel_, wait_until, &stop_);
    // It is there still.
    if (absl::IsResourceExhausted(notice.status()) && channel_.is_open()) {
      if (!lacking_until) {
        lacking_until = Deadline::In(absl::FromChrono(take_again_for.load()));
      }
      if (!lacking_until->Passed()) {
        AwaitDescriptors(notice.status());
        continue;
      }
    }
    if (lacking_until) {
      lacking_until.reset();
      const platform::MutexLock lock(mutex_);
      lacking_ = absl::OkStatus();
    }
    if (absl::IsDeadlineExceeded(notice.status())) {
      // All segments there were are mapped.
      view.PopulateAhead();
      wait_until = absl::InfiniteFuture();
      continue;
    }
    absl::Status taken =
        notice.ok() ? Take(*std::move(notice)) : notice.status();
    if (taken.ok()) continue;
    if (absl::IsDataLoss(taken)) channel_.Close();
    absl::Status why = platform::Annotate(
        taken, "the pool's owner serves this process no more");
    {
      platform::MutexLock lock(mutex_);
      connection_ = why;
    }
    changed_.NotifyAll();
    platform::MutexLock lock(watch_mutex_);
    // Cancelled is this object's own end.
    if (watch_.disconnected != nullptr && !absl::IsCancelled(why)) {
      watch_.disconnected(why);
    }
    return;
  }
}

void Subscription::AwaitDescriptors(const absl::Status& lacking) {
  const Deadline again = Deadline::In(kTakeAgainAfter);
  platform::MutexLock lock(mutex_);
  lacking_ = lacking;
  while (!stopping_ && !again.Passed()) {
    changed_.WaitFor(mutex_, again.Slice());
  }
}

absl::Status Subscription::Take(Notice notice) {
  if (std::holds_alternative<Closed>(notice)) {
    return absl::UnavailableError("the owner has closed its pool");
  }
  if (const auto* recall = std::get_if<RecallBlocks>(&notice)) {
    return TakeRecall(*recall);
  }
  if (const auto* forget = std::get_if<ForgetSegment>(&notice)) {
    TakeForget(*forget);
    return absl::OkStatus();
  }
  return TakeSegment(std::move(notice));
}

}  // namespace vmm::pool
