#include "vmm/share/internal/session_server.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/start_thread.h"
#include "platform/os/surroundings.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

// How long the acceptor waits before it tries again when the process is out of
// descriptors: nothing tells it when there is one again.
constexpr std::chrono::milliseconds kRetryAfterExhaustion{20};

// How often what ended is looked for while there is anything that may end.
// Nobody else may come, or ask.
constexpr absl::Duration kTidyEvery = absl::Seconds(1);

// How long a peer that is told so on the spare descriptor may keep it.
constexpr absl::Duration kSpareTimeout = absl::Milliseconds(100);

// Descriptors that a session opens before it has sent anything: a lifeline,
// two references to its peer, and a handle. Sending takes up to 16.
constexpr std::size_t kDescriptorsOfASession = 4;

absl::Status OutOfDescriptors(absl::string_view owner) {
  const absl::StatusOr<platform::DescriptorLimits> limits =
      platform::GetDescriptorLimits();
  return absl::ResourceExhaustedError(absl::StrCat(
      owner, " may open ",
      limits.ok() ? absl::StrCat(limits->soft) : std::string("no more"),
      " descriptors (RLIMIT_NOFILE) and has too few left for another session, "
      "which takes ",
      kDescriptorsOfASession + 1, " and up to ", platform::kMaxHandles,
      " more while it sends. Raise the limit of that process (ulimit -n)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Bind(
    Options options) {
  options.limits = options.limits.WithDefaults(options.peers);
  ASSIGN_OR_RETURN(platform::CancelEvent stop, platform::CancelEvent::Create());
  ASSIGN_OR_RETURN(platform::OsHandle spare,
                   platform::Duplicate(stop.handle()));
  ASSIGN_OR_RETURN(platform::Listener listener,
                   platform::Listener::Bind(options.listener, options.peers));
  listener.Tell(options.turned_away);
  return std::unique_ptr<SessionServer>(
      new SessionServer(std::move(options), std::move(listener),
                        std::move(stop), std::move(spare)));
}

SessionServer::SessionServer(Options options, platform::Listener listener,
                             platform::CancelEvent stop,
                             platform::OsHandle spare)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      address_(listener_.address()),
      stop_(std::move(stop)),
      spare_(std::move(spare)) {}

absl::Status SessionServer::Start(std::function<void(Session&)> serve) {
  serve_ = std::move(serve);
  return platform::StartThread(
      acceptor_, "vmmshare-accept",
      absl::StrCat("of ", options_.owner, " that accepts connections"),
      [this] { AcceptLoop(); });
}

void SessionServer::Stop() {
  stop_.Notify();
  {
    platform::MutexLock lock(mutex_);
    stop_asked_ = true;
  }
  stopping_.NotifyAll();
  if (acceptor_.joinable()) acceptor_.join();
  for (Session& session : sessions_) session.thread.join();
  sessions_.clear();
}

void SessionServer::AcceptLoop() {
  for (;;) {
    const bool keeps_any = options_.tidy();
    const bool is_idle =
        !keeps_any && sessions_.empty() && turned_away_.empty();
    absl::StatusOr<platform::Channel> channel = listener_.Accept(
        is_idle ? Deadline(absl::InfiniteFuture()) : Deadline::In(kTidyEvery),
        &stop_);
    ForgetFinished();
    if (channel.ok()) {
      Admit(*std::move(channel));
      continue;
    }
    if (absl::IsCancelled(channel.status())) return;
    if (absl::IsDeadlineExceeded(channel.status())) continue;
    if (absl::IsResourceExhausted(channel.status()) && TurnAwayOnSpare()) {
      continue;
    }
    options_.failed(channel.status());
    platform::MutexLock lock(mutex_);
    if (!stop_asked_) stopping_.WaitFor(mutex_, kRetryAfterExhaustion);
    if (stop_asked_) return;
  }
}

absl::Status SessionServer::CheckRoomFor(
    const platform::PeerCredentials& peer) const {
  PeerTally tally(peer);
  for (const Session& session : sessions_) {
    if (session.is_counted && !session.done) tally.Count(session.peer);
  }
  absl::Status room =
      tally.Check(options_.limits, options_.owner, "connections");
  if (room.ok()) return CheckDescriptors();
  return platform::Annotate(room, "", options_.remedy);
}

absl::Status SessionServer::CheckDescriptors() const {
  std::array<absl::StatusOr<platform::OsHandle>, kDescriptorsOfASession> all;
  for (absl::StatusOr<platform::OsHandle>& one : all) {
    one = platform::Duplicate(stop_.handle());
    if (!one.ok()) return OutOfDescriptors(options_.owner);
  }
  return absl::OkStatus();
}

void SessionServer::Admit(platform::Channel channel) {
  absl::Status refusal = CheckRoomFor(channel.peer());
  if (refusal.ok()) {
    Session& session =
        sessions_.emplace_back(std::move(channel), next_session_++);
    refusal = platform::StartThread(
        session.thread, "vmmshare-serve",
        absl::StrCat("of ", options_.owner, " for a session"),
        [this, &session] {
          serve_(session);
          session.channel.Close();
          session.done = true;
        });
    if (refusal.ok()) return;
    channel = std::move(session.channel);
    sessions_.pop_back();
  }
  TurnAway(std::move(channel), refusal);
}

void SessionServer::TurnAway(platform::Channel channel,
                             const absl::Status& why) {
  ++refused_;
  if (options_.turned_away) options_.turned_away(channel.peer(), why);
  // It fits, or the peer is told by the hang-up.
  if (!protocol::SendError(channel, protocol::kAbort, why, absl::InfinitePast())
           .ok()) {
    return;
  }
  // Kept until the peer has hung up: before, it would lose the message, since
  // it would fail to send its request and never read.
  const platform::PeerCredentials peer = channel.peer();
  turned_away_.push_back(std::move(channel));
  const auto is_its = [&peer](const platform::Channel& one) {
    return one.peer().pid == peer.pid && one.peer().user == peer.user;
  };
  const auto its = static_cast<std::size_t>(
      std::count_if(turned_away_.begin(), turned_away_.end(), is_its));
  if (its > kMaxTurnedAwayOfProcess) {
    turned_away_.erase(
        std::find_if(turned_away_.begin(), turned_away_.end(), is_its));
  } else if (turned_away_.size() > kMaxTurnedAway) {
    turned_away_.pop_front();
  }
}

bool SessionServer::TurnAwayOnSpare() {
  spare_.Reset();
  absl::StatusOr<platform::Channel> channel =
      listener_.Accept(absl::InfinitePast());
  if (channel.ok()) {
    ++refused_;
    const absl::Status why = OutOfDescriptors(options_.owner);
    options_.failed(why);
    if (options_.turned_away) options_.turned_away(channel->peer(), why);
    protocol::SendError(*channel, protocol::kAbort, why, absl::InfinitePast())
        .IgnoreError();
    channel->WaitForHangUp(Deadline::In(kSpareTimeout), &stop_).IgnoreError();
    channel->Close();
  }
  absl::StatusOr<platform::OsHandle> spare =
      platform::Duplicate(stop_.handle());
  if (spare.ok()) spare_ = *std::move(spare);
  return channel.ok();
}

void SessionServer::ForgetFinished() {
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    if (session->done) {
      session->thread.join();
      session = sessions_.erase(session);
    } else {
      ++session;
    }
  }
  std::erase_if(turned_away_, [](const platform::Channel& channel) {
    return !absl::IsDeadlineExceeded(
        channel.WaitForHangUp(absl::InfinitePast()));
  });
}

}  // namespace vmm
