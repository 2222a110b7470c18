// How a barrier comes about: rank 0 offers it, the others join.
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/job/internal/barrier_protocol.h"
#include "vmm/job/internal/barrier_state.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {

using barrier::Link;
using barrier::NameOf;

namespace {

// Rank 0, which waits for a member that cannot join.
void TellWhyNot(platform::Channel& host, const absl::Status& why) {
  protocol::SendError(host, protocol::kRefused, why, absl::InfinitePast())
      .IgnoreError();  // The hang-up says it otherwise.
}

}  // namespace

absl::StatusOr<std::unique_ptr<Barrier::State>> Barrier::State::Make(
    std::uint32_t rank, const platform::Driver& driver) {
  ASSIGN_OR_RETURN(platform::CancelEvent stop, platform::CancelEvent::Create());
  return std::make_unique<State>(rank, driver, std::move(stop));
}

absl::Status Barrier::State::Host(FencePool& fences, const std::string& ticket,
                                  std::vector<platform::Channel> members,
                                  Deadline deadline) {
  barrier::Offer offer;
  offer.pool = ticket;
  for (std::size_t i = 0; i <= members.size(); ++i) {
    ASSIGN_OR_RETURN(Fence fence, fences.New());
    ASSIGN_OR_RETURN(offer.fences.emplace_back(), fences.Export(fence));
    fences_.push_back(std::move(fence));
  }
  for (platform::Channel& channel : members) {
    offer.rank = static_cast<std::uint32_t>(links_.size()) + 1;
    links_.push_back(std::make_unique<Link>(offer.rank, std::move(channel)));
    platform::Channel& to = links_.back()->peer.channel();
    absl::Status sent =
        to.Send(barrier::kBarrierOffer, EncodeOffer(offer), {}, deadline);
    if (sent.ok()) sent = platform::SendLifeline(to, deadline);
    if (!sent.ok()) return platform::Annotate(sent, NameOf(offer.rank));
  }
  for (const std::unique_ptr<Link>& link : links_) {
    const auto did_not_join = [&link](const absl::Status& why) {
      return platform::Annotate(
          why, absl::StrCat(NameOf(link->rank), " did not join"));
    };
    absl::StatusOr<platform::Message> answer = link->peer.Receive(deadline);
    if (!answer.ok()) return did_not_join(answer.status());
    if (answer->type == protocol::kRefused) {
      return protocol::DecodeError(answer->payload, NameOf(link->rank));
    }
    if (answer->type == barrier::kBarrierBye) {
      return did_not_join(absl::UnavailableError("it left"));
    }
    if (answer->type != barrier::kBarrierJoined) {
      return absl::DataLossError(
          absl::StrCat(NameOf(link->rank),
                       " answered the offer of a barrier by a message of "
                       "type 0x",
                       absl::Hex(answer->type)));
    }
    RETURN_IF_ERROR(did_not_join(
        link->peer.ReceiveLifeline(deadline, barrier::kBarrierBye)));
  }
  return StartWatchers();
}

absl::Status Barrier::State::Subscribe(const Device& device,
                                       const barrier::Offer& offer,
                                       Deadline deadline,
                                       const platform::PeerPolicy& owners) {
  RETURN_IF_ERROR(
      links_.front()->peer.ReceiveLifeline(deadline, barrier::kBarrierBye));
  ASSIGN_OR_RETURN(imported_, ImportedFencePool::Subscribe(
                                  device.driver(), offer.pool,
                                  {.devices = {device}}, deadline, owners));
  for (const FenceTicket& ticket : offer.fences) {
    ASSIGN_OR_RETURN(Fence fence, imported_->Import(ticket, deadline));
    fences_.push_back(std::move(fence));
  }
  return StartWatchers();
}

absl::Status Barrier::State::Join(const Device& device,
                                  const barrier::Offer& offer,
                                  std::unique_ptr<Link> host, Deadline deadline,
                                  const platform::PeerPolicy& owners) {
  links_.push_back(std::move(host));
  platform::Channel& channel = links_.front()->peer.channel();
  absl::Status joined = Subscribe(device, offer, deadline, owners);
  if (!joined.ok()) {
    // Before the pool; and this rank's own may be none of those that came.
    fences_.clear();
    imported_.reset();
    TellWhyNot(channel, joined);
    return joined;
  }
  RETURN_IF_ERROR(channel.Send(barrier::kBarrierJoined, {}, {}, deadline));
  return platform::SendLifeline(channel, deadline);
}

absl::StatusOr<std::unique_ptr<Barrier>> Barrier::Host(
    FencePool& fences, const std::string& fences_ticket,
    std::vector<platform::Channel> members, Deadline deadline) {
  if (members.empty() || members.size() >= kMaxBarrierMembers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a barrier of rank 0 and ", members.size(), " others; expected 1 to ",
        kMaxBarrierMembers - 1, " others"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<State> state,
                   State::Make(0, fences.pool().device().driver()));
  std::unique_ptr<Barrier> made(new Barrier(std::move(state)));
  RETURN_IF_ERROR(
      made->state_->Host(fences, fences_ticket, std::move(members), deadline));
  return made;
}

absl::StatusOr<std::unique_ptr<Barrier>> Barrier::Join(
    const Device& device, platform::Channel host, Deadline deadline,
    const platform::PeerPolicy& owners) {
  auto link = std::make_unique<Link>(0, std::move(host));
  absl::StatusOr<platform::Message> message = link->peer.Receive(deadline);
  if (!message.ok()) {
    return platform::Annotate(message.status(), "no barrier was offered");
  }
  if (message->type != barrier::kBarrierOffer) {
    return absl::DataLossError(
        absl::StrCat("a message of type 0x", absl::Hex(message->type),
                     " came where the offer of a barrier was expected"));
  }
  absl::StatusOr<barrier::Offer> offer = barrier::DecodeOffer(message->payload);
  if (!offer.ok()) {
    TellWhyNot(link->peer.channel(), offer.status());
    return offer.status();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<State> state,
                   State::Make(offer->rank, device.driver()));
  std::unique_ptr<Barrier> made(new Barrier(std::move(state)));
  RETURN_IF_ERROR(
      made->state_->Join(device, *offer, std::move(link), deadline, owners));
  return made;
}

}  // namespace vmm
