// RingPeer: one side's view of the other, over the ring's channel; internal to
// vmm/. docs/wire_format.md has the messages.
//
//   writer                                   reader
//   kRingOffer  how many buffers, and the strings of both pools
//                                            kRingJoined, or protocol::kRefused
//   kRingItem   again and again
//   kRingEnd    no more come: how many there were
//   kRingLetGo  either side, at any time, once: LetGo() was called there
//   kRingBye    either side, at any time: it has left, and its GPU has passed
//               what it published, or released
//
// After kRingOffer, and after kRingJoined, comes the sender's lifeline: its end
// is proven by that (peer_watch.h) and not by the end of its process, for what
// that has forked may still use the buffers.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_RING_PEER_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_RING_PEER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/queue/internal/watcher.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/internal/peer.h"

namespace vmm::ring {

enum MessageType : std::uint16_t {
  kRingOffer = 0xF020,
  kRingJoined = 0xF021,
  kRingItem = 0xF022,
  kRingEnd = 0xF023,
  kRingBye = 0xF024,
  kRingLetGo = 0xF025,
};

struct Offer {
  std::uint32_t buffers = 0;
  std::uint64_t bytes = 0;  // Of each.
  std::string pool;         // Share::ticket() of the buffers,
  std::string fences;       // and of the fences.
};

std::vector<std::uint8_t> EncodeOffer(const Offer& offer);
// Total: DATA_LOSS for bytes that are none, or no ring that can be.
absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> in);

// What calls return after a LetGo() here.
inline absl::Status LetGoHere() {
  return absl::AbortedError(
      "the ring was let go by LetGo(), in C and Python abort(). Open another "
      "ring");
}

// Thread-compatible, but for what says otherwise.
class RingPeer {
 public:
  // `who` is the other side, for messages: "reader", "writer".
  RingPeer(platform::Channel channel, const std::string& who)
      : who_(who), peer_(std::move(channel), "the " + who) {}

  platform::Channel& channel() { return peer_.channel(); }
  // As Peer's; another process that speaks for it is heard no more. Not after
  // Hear() or StillHere().
  absl::StatusOr<platform::Message> Receive(Deadline deadline);
  absl::Status ReceiveLifeline(Deadline deadline) {
    return peer_.ReceiveLifeline(deadline, kRingBye);
  }

  // Both read what there is, for when it may send nothing but one kRingLetGo and
  // kRingBye, and return what was heard first, from then on: OK as long as there was
  // nothing, ABORTED for kRingLetGo, UNAVAILABLE for kRingBye or a hang-up, DATA_LOSS
  // for anything else. Hear() is thread-safe; StillHere() hangs up on who sends
  // nonsense.
  absl::Status Hear();
  absl::Status StillHere();

  // What a message means that may come at any time: UNAVAILABLE for kRingBye,
  // ABORTED for the first kRingLetGo, DATA_LOSS for what has no place.
  absl::Status Judge(const platform::Message& message);

  // What ends a wait for this peer. The wait must end before this object.
  // `may_read`: as in StillHere(); otherwise only hanging up counts. The end of
  // its process is enough here: that a wait ends hands no memory on.
  FenceWatch Watch(bool may_read);

  // Asks again and again on the thread of `watcher` whether its end is proven,
  // and calls `look` there. REQUIRES: its lifeline has come; `watcher` goes
  // before this object. Errors as Watcher::Start().
  absl::Status LookAfter(Watcher& watcher, std::function<void()> look);
  // Whether that has proven its end. Thread-safe.
  bool end_is_proven() const { return proven_; }

  // The error for a peer that has hung up, with what `status` says. Waits for
  // HasEnded(), and not beyond `deadline`: a second after the first call, and
  // three after the one that finds that its process has ended. So a caller whose
  // deadlines are short learns it too, by some calls. `*unproven` is OK once it
  // HasEnded(), as the error says then; else `status`, to call this with again.
  absl::Status Gone(const absl::Status& status, Deadline deadline,
                    absl::Status* unproven);

  // Its end is proven, or it said that it has left: it uses no buffer any more.
  bool HasEnded() {
    return has_left() || proven_ || peer_.HasEnded(absl::InfinitePast());
  }
  // Whether it said kRingBye, kRingLetGo. Thread-safe.
  bool has_left() const { return left_; }
  bool has_let_go() const { return has_let_go_; }

  // Says kRingLetGo, the first time; hangs up if that cannot be said at once.
  void SayLetGo();
  // Says kRingBye, if that is so and can be said at once, and hangs up.
  void Leave(bool has_passed);

 private:
  absl::Status LookForHangUp() const;
  void Close() {
    platform::MutexLock lock(hearing_);
    channel().Close();
  }

  std::string who_;
  Peer peer_;
  std::atomic<bool> left_ = false;
  std::atomic<bool> has_let_go_ = false;
  std::atomic<bool> proven_ = false;
  std::atomic<bool> nonsense_ = false;  // It is heard no more.
  bool said_let_go_ = false;
  // How long its end is waited for, and the proof of that; once it is lost.
  std::optional<Deadline> ends_by_;
  std::optional<Deadline> proven_by_;
  platform::Mutex hearing_;
  absl::Status heard_ ABSL_GUARDED_BY(hearing_);
};

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_RING_PEER_H_
