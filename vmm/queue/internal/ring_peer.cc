#include "vmm/queue/internal/ring_peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/ring.h"

namespace vmm::ring {
namespace {

// A killed process hangs up some 30 ms before it can be seen to have ended
// (measured on H100).
constexpr absl::Duration kEndAfterHangUp = absl::Seconds(1);
// From there to the proof, where all that it forked has ended: 2 s, with room.
constexpr absl::Duration kProofAfterEnd = absl::Seconds(3);
constexpr std::size_t kMaxString = 2048;
constexpr std::uint32_t kVersion = 2;

void PutString(WireWriter& out, const std::string& text) {
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(text.size()));
  out.PutText(text);
}

std::string TakeString(WireReader& in) {
  const std::size_t size = in.Take<std::uint16_t>();
  std::vector<std::uint8_t> bytes(std::min(size, kMaxString));
  in.TakeBytes(absl::MakeSpan(bytes));
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::uint8_t> EncodeOffer(const Offer& offer) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.Put<std::uint32_t>(kVersion);
  out.Put<std::uint32_t>(offer.buffers);
  out.Put<std::uint64_t>(offer.bytes);
  PutString(out, offer.pool);
  PutString(out, offer.fences);
  return bytes;
}

absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> bytes) {
  WireReader in(bytes);
  const auto version = in.Take<std::uint32_t>();
  // None of version 0 was ever written.
  if (!in.overrun() && version != kVersion && version != 0) {
    return absl::UnimplementedError(
        absl::StrCat("the writer offers a ring of version ", version,
                     "; this vmmshare reads version ", kVersion,
                     ". Use the same release in the writer and in the reader"));
  }
  Offer offer;
  offer.buffers = in.Take<std::uint32_t>();
  offer.bytes = in.Take<std::uint64_t>();
  offer.pool = TakeString(in);
  offer.fences = TakeString(in);
  if (version != kVersion || in.overrun() || in.left() != 0 ||
      offer.buffers == 0 || offer.buffers > kMaxRingBuffers ||
      offer.bytes == 0) {
    return absl::DataLossError(
        absl::StrCat("the writer offers no ring: ", bytes.size(), " bytes, ",
                     offer.buffers, " buffers of ", offer.bytes, " bytes"));
  }
  return offer;
}

absl::StatusOr<platform::Message> RingPeer::Receive(Deadline deadline) {
  absl::StatusOr<platform::Message> message = peer_.Receive(deadline);
  if (absl::IsDataLoss(message.status())) Close();
  return message;
}

absl::Status RingPeer::Judge(const platform::Message& message) {
  if (message.type == kRingBye) {
    left_ = true;
    return absl::UnavailableError(
        absl::StrCat(peer_.who(), " has left the ring"));
  }
  if (message.type == kRingLetGo && !has_let_go_) {
    has_let_go_ = true;
    return absl::AbortedError(absl::StrCat(
        peer_.who(),
        " called LetGo(), as abort() does in C and Python, and there close() "
        "of a reader that has a buffer, or an array of one. Open another "
        "ring"));
  }
  return absl::DataLossError(
      absl::StrCat(peer_.who(), " sent a message of type 0x",
                   absl::Hex(message.type), ", which has no place here"));
}

absl::Status RingPeer::Hear() {
  const platform::MutexLock lock(hearing_);
  // Twice at most: who has let go may say that it has left, too, and nothing else.
  while (!left_ && !nonsense_) {
    const absl::StatusOr<platform::Message> message = peer_.ReceiveNow();
    const absl::Status said = message.ok() ? Judge(*message) : message.status();
    if (absl::IsDeadlineExceeded(said)) break;
    nonsense_ = absl::IsDataLoss(said);
    // What else fails may pass: a kernel that has no memory just now.
    if (!message.ok() && !nonsense_ && !absl::IsUnavailable(said) &&
        !absl::IsPermissionDenied(said)) {
      return heard_.ok() ? said : heard_;
    }
    heard_.Update(said);
    if (!message.ok()) break;
  }
  return heard_;
}

absl::Status RingPeer::StillHere() {
  absl::Status here = Hear();
  if (nonsense_) Close();
  return here;
}

absl::Status RingPeer::LookAfter(Watcher& watcher, std::function<void()> look) {
  return watcher.Start(
      [this, watch = *peer_.watch(), look = std::move(look)]() mutable {
        if (watch.Look() == platform::PeerEnd::kProven) proven_ = true;
        look();
      });
}

absl::Status RingPeer::LookForHangUp() const {
  absl::Status hung_up = peer_.channel().WaitForHangUp(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(hung_up)) return absl::OkStatus();
  if (!hung_up.ok()) return hung_up;
  return absl::UnavailableError(absl::StrCat(peer_.who(), " hung up"));
}

FenceWatch RingPeer::Watch(bool may_read) {
  FenceWatch watch;
  watch.still_worth = [this, may_read] {
    absl::Status here = may_read ? StillHere() : LookForHangUp();
    if (here.ok() && peer_.ProcessHasEnded()) {
      here = absl::UnavailableError(
          absl::StrCat("the process of ", peer_.who(), " has ended"));
    }
    return here;
  };
  return watch;
}

absl::Status RingPeer::Gone(const absl::Status& status, Deadline deadline,
                            absl::Status* unproven) {
  if (!HasEnded()) {
    if (!ends_by_.has_value()) ends_by_ = Deadline::In(kEndAfterHangUp);
    peer_.HasEnded(std::min(deadline, *ends_by_));
    if (peer_.ProcessHasEnded()) {
      if (!proven_by_.has_value()) proven_by_ = Deadline::In(kProofAfterEnd);
      peer_.HasEnded(std::min(deadline, *proven_by_));
    }
  }
  const bool ended = HasEnded();
  absl::Status gone =
      platform::Annotate(absl::UnavailableError(status.message()),
                         absl::StrCat("the ring has lost its ", who_),
                         ended ? "Streams that waited for it were let go"
                               : absl::StrCat("It ", peer_.Describe()));
  *unproven = ended ? absl::OkStatus() : status;  // Last: they may be one.
  return gone;
}

void RingPeer::SayLetGo() {
  if (said_let_go_) return;
  said_let_go_ = true;
  if (!channel().Send(kRingLetGo, {}, {}, absl::InfinitePast()).ok()) {
    Close();
  }
}

void RingPeer::Leave(bool has_passed) {
  // Where it does not fit the hang-up says it.
  if (has_passed) {
    channel().Send(kRingBye, {}, {}, absl::InfinitePast()).IgnoreError();
  }
  Close();
}

}  // namespace vmm::ring
