#include "vmm/barrier.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/abandon.h"
#include "platform/annotate.h"
#include "platform/process.h"
#include "vmm/barrier/protocol.h"
#include "vmm/fence.h"
#include "vmm/protocol.h"

namespace vmm {
namespace {

// From the hang-up of a process that is killed to its confirmed end (measured:
// up to 73 ms), with room; and from there to word of it from rank 0.
constexpr absl::Duration kEndAfterHangUp = absl::Seconds(1);

// A connection to another member.
struct Link {
  Link(std::uint32_t its_rank, platform::Channel its_channel)
      : rank(its_rank), channel(std::move(its_channel)) {
    absl::StatusOr<platform::Process> opened = channel.OpenPeer();
    if (opened.ok()) process = *std::move(opened);
  }
  std::uint32_t rank;
  platform::Channel channel;
  // Without it a hang-up counts as its end.
  std::optional<platform::Process> process;
  std::thread watcher;
};

std::string NameOf(std::uint32_t rank) { return absl::StrCat("rank ", rank); }

}  // namespace

class Barrier::State : public platform::Abandonable {
 public:
  State(std::uint32_t rank, platform::CancelEvent stop)
      : rank_(rank), forks_(platform::ForksSoFar()), stop_(std::move(stop)) {}
  // Whether nothing of it is in use any more, so that it can be destroyed.
  bool End();

  static absl::StatusOr<std::unique_ptr<State>> Make(std::uint32_t rank);
  bool IsOfAnotherProcess() const { return platform::ForksSoFar() != forks_; }
  absl::Status Host(FencePool& fences, const std::string& ticket,
                    std::vector<platform::Channel> members,
                    absl::Time deadline);
  absl::Status Join(const Device& device, const barrier::Offer& offer,
                    platform::Channel host, absl::Time deadline,
                    const platform::PeerPolicy& owners);

  // `deadline`: for word of why the barrier was let go, if it was.
  absl::Status Arrive(const std::function<absl::Status(Fence&)>& signal,
                      absl::Time deadline);
  absl::Status ArriveOnHost(absl::Time deadline);
  absl::Status Wait(CUstream stream);
  absl::Status WaitOnHost(absl::Time deadline);
  void LetGo();
  absl::Status status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const {
    return static_cast<std::uint32_t>(fences_.size());
  }
  std::uint64_t round() const { return round_; }

 private:
  absl::Status StartWatchers();
  void Watch(Link& link);
  void TakeGone(const barrier::Gone& gone, const absl::Status& why);
  void TellOthers(const barrier::Gone& gone);
  // Why the fence of `rank` answered that: what is known of it says more.
  absl::Status Judge(const absl::Status& status, std::uint32_t rank,
                     absl::Time deadline);

  std::uint32_t rank_;
  const std::uint64_t forks_;
  const platform::CancelEvent stop_;
  std::unique_ptr<ImportedFencePool> imported_;  // Goes after the fences.
  std::vector<Fence> fences_;                    // One a rank.
  std::vector<std::unique_ptr<Link>> links_;
  std::uint64_t round_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;  // Of the whole barrier.
  // Of each rank: why it will arrive at no further round.
  std::vector<absl::Status> gone_;
  std::mutex sending_;  // Of what watchers send.
};

absl::StatusOr<std::unique_ptr<Barrier::State>> Barrier::State::Make(
    std::uint32_t rank) {
  absl::StatusOr<platform::CancelEvent> stop = platform::CancelEvent::Create();
  if (!stop.ok()) return stop.status();
  return std::make_unique<State>(rank, *std::move(stop));
}

absl::Status Barrier::State::Host(FencePool& fences, const std::string& ticket,
                                  std::vector<platform::Channel> members,
                                  absl::Time deadline) {
  barrier::Offer offer;
  offer.pool = ticket;
  for (std::size_t i = 0; i <= members.size(); ++i) {
    absl::StatusOr<Fence> fence = fences.New();
    if (!fence.ok()) return fence.status();
    absl::StatusOr<FenceTicket> exported = fences.Export(*fence);
    if (!exported.ok()) return exported.status();
    fences_.push_back(*std::move(fence));
    offer.fences.push_back(*exported);
  }
  gone_.resize(fences_.size());
  for (platform::Channel& channel : members) {
    offer.rank = static_cast<std::uint32_t>(links_.size()) + 1;
    links_.push_back(std::make_unique<Link>(offer.rank, std::move(channel)));
    absl::Status sent = links_.back()->channel.Send(
        barrier::kBarrierOffer, EncodeOffer(offer), {}, deadline);
    if (!sent.ok()) return platform::Annotate(sent, NameOf(offer.rank));
  }
  for (const std::unique_ptr<Link>& link : links_) {
    absl::StatusOr<platform::Message> answer = link->channel.Receive(deadline);
    if (!answer.ok()) {
      return platform::Annotate(
          answer.status(), absl::StrCat(NameOf(link->rank), " did not join"));
    }
    if (answer->type == protocol::kRefused) {
      return protocol::DecodeError(answer->payload, NameOf(link->rank));
    }
    if (answer->type != barrier::kBarrierJoined) {
      return absl::DataLossError(
          absl::StrCat(NameOf(link->rank),
                       " answered the offer of a barrier by a message of "
                       "type 0x",
                       absl::Hex(answer->type)));
    }
  }
  return StartWatchers();
}

absl::Status Barrier::State::Join(const Device& device,
                                  const barrier::Offer& offer,
                                  platform::Channel host, absl::Time deadline,
                                  const platform::PeerPolicy& owners) {
  links_.push_back(std::make_unique<Link>(0, std::move(host)));
  absl::StatusOr<std::unique_ptr<ImportedFencePool>> imported =
      ImportedFencePool::Subscribe(device.driver(), offer.pool,
                                   {.devices = {device}}, deadline, owners);
  absl::Status joined = imported.status();
  for (const FenceTicket& ticket : offer.fences) {
    if (!joined.ok()) break;
    absl::StatusOr<Fence> fence = (*imported)->Import(ticket, deadline);
    joined = fence.status();
    if (fence.ok()) fences_.push_back(*std::move(fence));
  }
  platform::Channel& channel = links_.front()->channel;
  if (!joined.ok()) {
    fences_.clear();  // Before the pool.
    protocol::SendError(channel, protocol::kRefused, joined,
                        absl::InfinitePast())
        .IgnoreError();  // The hang-up says it otherwise.
    return joined;
  }
  imported_ = *std::move(imported);
  gone_.resize(fences_.size());
  joined = StartWatchers();
  if (!joined.ok()) return joined;
  return channel.Send(barrier::kBarrierJoined, {}, {}, deadline);
}

absl::Status Barrier::State::StartWatchers() {
  for (const std::unique_ptr<Link>& link : links_) {
    try {
      link->watcher = std::thread([this, raw = link.get()] { Watch(*raw); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot start a thread that watches a barrier: ", error.what()));
    }
  }
  return absl::OkStatus();
}

void Barrier::State::Watch(Link& link) {
  for (;;) {
    absl::StatusOr<platform::Message> message =
        link.channel.Receive(absl::InfiniteFuture(), &stop_);
    if (absl::IsCancelled(message.status())) return;
    barrier::Gone gone{link.rank, false};
    absl::Status why;
    if (message.ok() && message->type == barrier::kBarrierGone && rank_ != 0) {
      absl::StatusOr<barrier::Gone> other =
          barrier::DecodeGone(message->payload, size());
      if (other.ok()) {
        TakeGone(*other, absl::UnavailableError(absl::StrCat(
                             NameOf(other->rank),
                             other->left ? " has left" : " has ended",
                             ", as rank 0 says")));
        continue;
      }
      why = other.status();
    } else if (message.ok() && message->type == barrier::kBarrierBye) {
      gone.left = true;
      why = absl::UnavailableError(
          absl::StrCat(NameOf(link.rank), " has left the barrier"));
    } else if (message.ok()) {
      why = absl::DataLossError(absl::StrCat(
          NameOf(link.rank), " sent a message of type 0x",
          absl::Hex(message->type), ", which has no place in a barrier"));
    } else {
      const bool ended =
          link.process.has_value() &&
          link.process->WaitForExit(absl::Now() + kEndAfterHangUp).ok();
      why = absl::UnavailableError(absl::StrCat(
          NameOf(link.rank),
          ended ? " has ended: " : " hung up, and is not known to have ended: ",
          message.status().message()));
    }
    TakeGone(gone, why);
    TellOthers(gone);
    return;
  }
}

void Barrier::State::TakeGone(const barrier::Gone& gone,
                              const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (gone_[gone.rank].ok()) gone_[gone.rank] = why;
    if (!gone.left && status_.ok()) status_ = why;
  }
  // One that left has arrived wherever it ever will. One that ended breaks the
  // barrier: members that learn of it arrive no more, so none may wait for
  // them.
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (!gone.left || rank == gone.rank) fences_[rank].Abandon().IgnoreError();
  }
  changed_.notify_all();
}

void Barrier::State::TellOthers(const barrier::Gone& gone) {
  if (rank_ != 0) return;
  std::lock_guard<std::mutex> lock(sending_);
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->rank == gone.rank) continue;
    // One that does not read is told by the end of its connection.
    link->channel
        .Send(barrier::kBarrierGone, EncodeGone(gone), {}, absl::InfinitePast())
        .IgnoreError();
  }
}

absl::Status Barrier::State::Judge(const absl::Status& status,
                                   std::uint32_t rank, absl::Time deadline) {
  if (!absl::IsAborted(status)) {
    return platform::Annotate(status,
                              absl::StrCat(NameOf(rank), " in round ", round_));
  }
  // Somebody may have let go before this process was told why.
  deadline = std::min(deadline, absl::Now() + kEndAfterHangUp);
  std::unique_lock<std::mutex> lock(mutex_);
  while (status_.ok() && gone_[rank].ok() && absl::Now() < deadline) {
    changed_.wait_until(lock, absl::ToChronoTime(deadline));
  }
  if (!status_.ok()) return status_;
  if (!gone_[rank].ok()) return gone_[rank];
  return platform::Annotate(
      status, absl::StrCat("the barrier was let go, ", NameOf(rank),
                           " in round ", round_));
}

absl::Status Barrier::State::Arrive(
    const std::function<absl::Status(Fence&)>& signal, absl::Time deadline) {
  absl::Status can = status();
  if (!can.ok()) return can;
  can = signal(fences_[rank_]);
  if (!can.ok()) return Judge(can, rank_, deadline);
  ++round_;
  return absl::OkStatus();
}

absl::Status Barrier::State::ArriveOnHost(absl::Time deadline) {
  return Arrive(
      [this](Fence& fence) { return fence.SignalFromHost(round_ + 1); },
      deadline);
}

absl::Status Barrier::State::Wait(CUstream stream) {
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    absl::Status put = fences_[rank].Wait(stream, round_);
    if (!put.ok()) return Judge(put, rank, absl::InfinitePast());
  }
  return absl::OkStatus();
}

absl::Status Barrier::State::WaitOnHost(absl::Time deadline) {
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    absl::Status came = fences_[rank].WaitOnHost(round_, deadline);
    if (!came.ok()) return Judge(came, rank, deadline);
  }
  return absl::OkStatus();
}

void Barrier::State::LetGo() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = absl::AbortedError("the barrier was let go by LetGo()");
    }
  }
  for (Fence& fence : fences_) fence.Abandon().IgnoreError();
  changed_.notify_all();
}

bool Barrier::State::End() {
  stop_.Notify();
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->watcher.joinable()) link->watcher.join();
  }
  const bool passed =
      fences_.empty() ||
      fences_[rank_].WaitOnHost(round_, absl::InfinitePast()).ok();
  for (const std::unique_ptr<Link>& link : links_) {
    // Those that are not told so take the hang-up for an end.
    if (passed && link->channel.is_open()) {
      link->channel.Send(barrier::kBarrierBye, {}, {}, absl::InfinitePast())
          .IgnoreError();
    }
    link->channel.Close();
  }
  return passed;
}

absl::StatusOr<std::unique_ptr<Barrier>> Barrier::Host(
    FencePool& fences, const std::string& fences_ticket,
    std::vector<platform::Channel> members, absl::Time deadline) {
  if (members.empty() || members.size() >= kMaxBarrierMembers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a barrier of rank 0 and ", members.size(), " others; expected 1 to ",
        kMaxBarrierMembers - 1, " others"));
  }
  absl::StatusOr<std::unique_ptr<State>> state = State::Make(0);
  if (!state.ok()) return state.status();
  std::unique_ptr<Barrier> made(new Barrier(*std::move(state)));
  absl::Status hosted =
      made->state_->Host(fences, fences_ticket, std::move(members), deadline);
  if (!hosted.ok()) return hosted;
  return made;
}

absl::StatusOr<std::unique_ptr<Barrier>> Barrier::Join(
    const Device& device, platform::Channel host, absl::Time deadline,
    const platform::PeerPolicy& owners) {
  absl::StatusOr<platform::Message> message = host.Receive(deadline);
  if (!message.ok()) {
    return platform::Annotate(message.status(), "no barrier was offered");
  }
  if (message->type != barrier::kBarrierOffer) {
    return absl::DataLossError(
        absl::StrCat("a message of type 0x", absl::Hex(message->type),
                     " came where the offer of a barrier was expected"));
  }
  absl::StatusOr<barrier::Offer> offer = barrier::DecodeOffer(message->payload);
  if (!offer.ok()) return offer.status();
  absl::StatusOr<std::unique_ptr<State>> state = State::Make(offer->rank);
  if (!state.ok()) return state.status();
  std::unique_ptr<Barrier> made(new Barrier(*std::move(state)));
  absl::Status joined =
      made->state_->Join(device, *offer, std::move(host), deadline, owners);
  if (!joined.ok()) return joined;
  return made;
}

Barrier::Barrier(std::unique_ptr<State> state) : state_(std::move(state)) {}

Barrier::~Barrier() {
  if (state_->IsOfAnotherProcess() || !state_->End()) {
    platform::Abandon(std::move(state_));
  }
}

absl::Status Barrier::Arrive(CUstream stream) {
  return state_->Arrive(
      [this, stream](Fence& fence) {
        return fence.Signal(stream, state_->round() + 1);
      },
      absl::InfinitePast());
}

absl::Status Barrier::ArriveOnHost() {
  return state_->ArriveOnHost(absl::InfinitePast());
}

absl::Status Barrier::Wait(CUstream stream) const {
  return state_->Wait(stream);
}

absl::Status Barrier::WaitOnHost(absl::Time deadline) const {
  return state_->WaitOnHost(deadline);
}

absl::Status Barrier::Meet(CUstream stream) {
  absl::Status arrived = Arrive(stream);
  return arrived.ok() ? Wait(stream) : arrived;
}

absl::Status Barrier::MeetOnHost(absl::Time deadline) {
  absl::Status arrived = state_->ArriveOnHost(deadline);
  return arrived.ok() ? WaitOnHost(deadline) : arrived;
}

void Barrier::LetGo() { state_->LetGo(); }
absl::Status Barrier::status() const { return state_->status(); }
std::uint32_t Barrier::rank() const { return state_->rank(); }
std::uint32_t Barrier::size() const { return state_->size(); }
std::uint64_t Barrier::round() const { return state_->round(); }

}  // namespace vmm
