// How a client of a keeper asks, and how its connection ends; keeper.cc and
// attach.cc have what it asks.
#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/busy.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

using keeper::Request;
using platform::Channel;
using platform::Message;

// For the keeper to take a goodbye: it is there, or its buffer is.
constexpr absl::Duration kSayGoodbye = absl::Milliseconds(100);

// For what keeper and client need for an answer, which is little unless the machine
// is busy, and is not counted as waiting.
constexpr absl::Duration kLook = absl::Seconds(1);

// What the keeper is told to wait, so that its answer, which says for whom, is
// here before the deadline.
absl::Duration WaitBefore(Deadline deadline) {
  const absl::Duration left = std::min(deadline.Left(), keeper::kMaxWait);
  const absl::Duration spare = std::min(left / 4, absl::Milliseconds(100));
  return absl::Floor(left - spare, absl::Milliseconds(1));
}

}  // namespace

void KeeperClient::Leave::operator()(Channel* channel) const {
  const std::unique_ptr<Channel> last(channel);
  if (!last->is_open() || !made.is_still_here()) return;
  try {
    last->Send(keeper::kGoodbye, {}, {}, Deadline::In(kSayGoodbye))
        .IgnoreError();
  } catch (const std::bad_alloc&) {
    // In destructors: the keeper hears that this one hung up.
  }
}

absl::StatusOr<KeeperClient::Connection> KeeperClient::Dial(
    const KeeperClientOptions& options, Deadline deadline) {
  absl::StatusOr<Channel> channel =
      Channel::Connect(options.address, options.keepers, deadline);
  if (channel.ok()) {
    return Connection(new Channel(*std::move(channel)));
  }
  const char* what_to_do = "";
  if (absl::IsNotFound(channel.status())) {
    what_to_do =
        "Start one: vmmshare keep. Or name the address of the one that runs: "
        "that of systemd's unit is /run/vmmshare-keeper/USER/keeper. "
        "Containers must share its directory.";
  } else if (absl::IsPermissionDenied(channel.status())) {
    what_to_do =
        "A keeper of another user lets in whom it was started with "
        "--allow-user, in a folder that both may enter (0755 or 1777). Its "
        "client names the keeper's user too: KeeperClientOptions::keepers, on "
        "the command line --allow-user. C and Python have keepers of their "
        "own user alone.";
  }
  return platform::Annotate(channel.status(), "no keeper can be asked",
                            what_to_do);
}

absl::StatusOr<KeeperClient> KeeperClient::Connect(
    const KeeperClientOptions& options, Deadline deadline) {
  KeeperClientOptions with_address = options;
  if (options.address.empty()) {
    ASSIGN_OR_RETURN(with_address.address, DefaultKeeperAddress());
  }
  ASSIGN_OR_RETURN(Connection channel, Dial(with_address, deadline));
  return KeeperClient(std::move(with_address), std::move(channel));
}

absl::StatusOr<Message> KeeperClient::Ask(const Request& request,
                                          Deadline deadline) {
  if (request.type != keeper::kList || !request.name.empty()) {
    RETURN_IF_ERROR(keeper::CheckName(request.name));
  }
  absl::StatusOr<Message> answer = RetryWhileBusy(
      deadline, [&](Busy* busy) { return AskOnce(request, deadline, busy); });
  if (!answer.ok()) return answer;
  if (!answer->handles.empty()) return keeper::Broken(*channel_, *answer);
  if (answer->type == keeper::kError) {
    return protocol::DecodeError(answer->payload, "the keeper");
  }
  return answer;
}

absl::StatusOr<Message> KeeperClient::AskOnce(const Request& request,
                                              Deadline deadline, Busy* busy) {
  const bool is_again = was_turned_away_;
  if (is_again) {
    ASSIGN_OR_RETURN(channel_, Dial(options_, deadline));
    lifeline_sent_ = is_behind_ = false;
  }
  if (channel_ == nullptr || is_behind_)
    return absl::UnavailableError(
        "this connection to the keeper is closed, as after an answer that did "
        "not come in time. Connect anew");
  const bool is_first = !was_answered_ && channel_->is_open();
  const std::vector<std::uint8_t> encoded = keeper::EncodeRequest(request);
  // Until the answer is here: what throws for want of memory leaves it unread.
  is_behind_ = true;
  absl::Status asked = channel_->Send(request.type, encoded, {}, deadline);
  if (asked.ok() && keeper::MayGainLock(request.type) && !lifeline_sent_) {
    asked = platform::SendLifeline(*channel_, deadline);
    lifeline_sent_ = asked.ok();
  }
  absl::StatusOr<Message> answer =
      asked.ok() ? channel_->Receive(deadline) : asked;
  absl::Status refused;
  if (is_first && absl::IsUnavailable(asked)) {
    refused = TurnedAwayUnread("the keeper", asked);
    *busy = Busy::kUnread;
  } else if (is_first && answer.ok() && answer->type == protocol::kAbort) {
    refused = protocol::DecodeError(answer->payload, "the keeper");
    if (absl::IsResourceExhausted(refused)) *busy = Busy::kSaid;
  } else if (answer.ok()) {
    was_answered_ = true;
    was_turned_away_ = false;
    is_behind_ = keeper::BeginsExchange(request.type, answer->type);
    return answer;
  }
  const bool asks_for_memory = request.type == keeper::kAttach ||
                               request.type == keeper::kAttachOrCreate;
  Disconnect(asks_for_memory ? protocol::kRefused : protocol::kAbort);
  was_turned_away_ = *busy != Busy::kNo || is_again;
  if (!refused.ok()) return refused;
  return platform::Annotate(answer.status(), "the keeper did not answer",
                            "Nothing more can be asked over this connection, "
                            "which has its writer locks until it is "
                            "destroyed: connect anew.");
}

void KeeperClient::EndExchange(bool in_step, std::uint16_t last_word) {
  is_behind_ = false;
  if (!in_step) Disconnect(last_word);
}

void KeeperClient::Disconnect(std::uint16_t last_word) {
  is_behind_ = true;
  if (locked_.empty()) {
    // Whoever knows of no lock writes under none, also if it got one just now.
    channel_ = nullptr;
  } else if (channel_->is_open()) {
    protocol::SendError(
        *channel_, static_cast<protocol::MessageType>(last_word),
        absl::AbortedError("the client gave up"), Deadline::In(kSayGoodbye))
        .IgnoreError();
  }
}

absl::StatusOr<Message> KeeperClient::AskAndWait(Request request,
                                                 Deadline deadline,
                                                 bool looks_once) {
  for (;;) {
    // Told to wait for less than until the deadline, it is asked again where it has
    // waited in vain.
    const bool is_longer = deadline.Left() > keeper::kMaxWait;
    request.wait = WaitBefore(deadline);
    const bool waits = request.wait > absl::ZeroDuration();
    absl::StatusOr<Message> answer =
        Ask(request, looks_once && !waits ? Deadline::In(kLook) : deadline);
    if (!is_longer || !is_open() ||
        !absl::IsDeadlineExceeded(answer.status())) {
      return answer;
    }
  }
}

absl::Status KeeperClient::AskForOk(const Request& request, Deadline deadline) {
  return CheckOk(Ask(request, deadline));
}

absl::Status KeeperClient::CheckOk(const absl::StatusOr<Message>& answer) {
  RETURN_IF_ERROR(answer.status());
  if (answer->type == keeper::kOk && answer->payload.empty()) {
    return absl::OkStatus();
  }
  return keeper::Broken(*channel_, *answer);
}

}  // namespace vmm
