#include "vmm/ring/peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "platform/annotate.h"
#include "vmm/ring.h"
#include "vmm/wire.h"

namespace vmm::ring {
namespace {

// A killed process hangs up some 30 ms before it can be seen to have ended
// (measured on H100).
constexpr absl::Duration kEndAfterHangUp = absl::Seconds(1);
constexpr std::size_t kMaxString = 2048;

void PutString(WireWriter& out, const std::string& text) {
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(text.size()));
  out.PutBytes(
      {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
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
  out.Put<std::uint32_t>(1);  // The version.
  out.Put<std::uint32_t>(offer.buffers);
  out.Put<std::uint64_t>(offer.bytes);
  PutString(out, offer.pool);
  PutString(out, offer.fences);
  return bytes;
}

absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> bytes) {
  WireReader in(bytes);
  const auto version = in.Take<std::uint32_t>();
  if (version > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "the writer offers a ring of version ", version,
        "; this vmmshare reads version 1. Update it to the writer's"));
  }
  Offer offer;
  offer.buffers = in.Take<std::uint32_t>();
  offer.bytes = in.Take<std::uint64_t>();
  offer.pool = TakeString(in);
  offer.fences = TakeString(in);
  if (version == 0 || in.overrun() || in.left() != 0 || offer.buffers == 0 ||
      offer.buffers > kMaxRingBuffers || offer.bytes == 0) {
    return absl::DataLossError(
        absl::StrCat("the writer offers no ring: ", bytes.size(), " bytes, ",
                     offer.buffers, " buffers of ", offer.bytes, " bytes"));
  }
  return offer;
}

RingPeer::RingPeer(platform::Channel channel, const char* who)
    : channel_(std::move(channel)), who_(who) {
  // Without it nobody is ever known to have ended, and the errors say so.
  absl::StatusOr<platform::Process> process = channel_.OpenPeer();
  if (process.ok()) process_ = *std::move(process);
}

absl::Status RingPeer::StillHere() {
  absl::StatusOr<platform::Message> message =
      channel_.Receive(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(message.status())) return absl::OkStatus();
  if (!message.ok()) return message.status();
  if (message->type == kRingBye) {
    ended_ = true;
    return absl::UnavailableError(
        absl::StrCat("the ", who_, " has left the ring"));
  }
  channel_.Close();
  return absl::DataLossError(
      absl::StrCat("the ", who_, " sent a message of type 0x",
                   absl::Hex(message->type), ", which has no place here"));
}

absl::Status RingPeer::LookForHangUp() const {
  absl::Status hung_up = channel_.WaitForHangUp(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(hung_up)) return absl::OkStatus();
  if (!hung_up.ok()) return hung_up;
  return absl::UnavailableError(absl::StrCat("the ", who_, " hung up"));
}

FenceWatch RingPeer::Watch(bool may_read) {
  FenceWatch watch;
  if (process_.has_value()) watch.signaller = &*process_;
  watch.still_worth = [this, may_read] {
    return may_read ? StillHere() : LookForHangUp();
  };
  return watch;
}

absl::Status RingPeer::Gone(const absl::Status& status, absl::Time deadline) {
  absl::string_view advice =
      "It is not known to have ended: streams that wait for it are let go by "
      "LetGo()";
  if (!ended_ && process_.has_value()) {
    ended_ =
        process_->WaitForExit(std::min(deadline, absl::Now() + kEndAfterHangUp))
            .ok();
  }
  if (ended_) advice = "Streams that waited for it were let go";
  return platform::Annotate(absl::UnavailableError(status.message()),
                            absl::StrCat("the ring has lost its ", who_),
                            advice);
}

void RingPeer::Leave() {
  // Where it does not fit the hang-up says it.
  channel_.Send(kRingBye, {}, {}, absl::InfinitePast()).IgnoreError();
  channel_.Close();
}

}  // namespace vmm::ring
