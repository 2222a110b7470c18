#include "platform/ipc/channel_state_win.h"

#include <windows.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/pipe_win.h"
#include "platform/ipc/transit_win.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

// How long closing a client's end waits until the server has taken what was
// sent: its handles would be lost with their sender.
constexpr absl::Duration kLinger = absl::Seconds(2);

// How long after its handles are gone a process counts as ended.
constexpr absl::Duration kPeersEnd = absl::Milliseconds(200);

constexpr std::size_t kMaxPacket = kMaxFrame + kMaxHandles * kHandleBytes;

// The pipe, borrowed for a call that takes an owner.
class Borrowed {
 public:
  explicit Borrowed(std::intptr_t pipe) : handle_(OsHandle::Adopt(pipe)) {}
  ~Borrowed() { (void)std::move(handle_).Relinquish(); }
  const OsHandle& get() const { return handle_; }

 private:
  OsHandle handle_;
};

}  // namespace

absl::StatusOr<Channel> Channel::State::MakeChannel(OsHandle pipe, Peer peer,
                                                    End end) {
  auto state = std::make_shared<State>();
  state->end = end;
  state->pipe = pipe.get();
  PeerCredentials credentials = peer.credentials;
  state->peer = std::move(peer);
  for (OsHandle* event : {&state->read_event, &state->write_event,
                          &state->taken_event, &state->broken_event}) {
    ASSIGN_OR_RETURN(*event, MakeEvent());
  }
  return Channel(std::move(pipe), std::move(credentials), std::move(state));
}

std::vector<OsHandle> Channel::State::LetGo() {
  bool was_broken = false;
  {
    const MutexLock lock(mutex);
    was_broken = broken;
  }
  try {
    if (!was_broken) AwaitTaken();
    DropUnread();
  } catch (const std::bad_alloc&) {
    // In destructors: without memory nobody is waited for, and what is unread
    // stays.
  }
  pipe = 0;
  const MutexLock lock(mutex);
  return std::exchange(parked, {});
}

Channel::State::Use::Use(Channel& channel) : channel_(channel) {
  std::shared_ptr<State> state = channel.state_;
  if (state == nullptr) return;
  const MutexLock lock(state->mutex);
  if (state->broken) return;
  ++state->users;
  state_ = std::move(state);
}

Channel::State::Use::~Use() {
  if (state_ == nullptr) return;
  const MutexLock lock(state_->mutex);
  if (--state_->users > 0 || !state_->broken) return;
  // Closed after the pipe: Decode() tells by it whether they were still open.
  const std::vector<OsHandle> parked = std::exchange(state_->parked, {});
  try {
    state_->DropUnread();
  } catch (const std::bad_alloc&) {
    // As in LetGo().
  }
  state_->pipe = 0;
  channel_.socket_.Reset();
}

absl::StatusOr<Message> Channel::State::Decode(
    absl::Span<const std::uint8_t> packet) {
  // The number of handles, which stand behind the frame.
  const std::size_t count =
      packet.size() < kFrameHeaderSize
          ? 0
          : std::size_t{packet[12]} | std::size_t{packet[13]} << 8;
  const std::size_t tail = count * kHandleBytes;
  if (count > kMaxHandles || packet.size() < kFrameHeaderSize + tail) {
    return absl::DataLossError(absl::StrCat("it states ", count, " handles in ",
                                            packet.size(), " bytes; at most ",
                                            kMaxHandles, " may be sent"));
  }
  const absl::Span<const std::uint8_t> frame =
      packet.subspan(0, packet.size() - tail);
  ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrame(frame, count));
  if (count > 0 && end == End::kServer && !peer.may_duplicate) {
    return absl::PermissionDeniedError(absl::StrCat(
        "it has ", count,
        " handles, and this process may not duplicate those of its sender"));
  }

  // A client's are open in this process: it has them before anything needs
  // memory, or whatever is refused some would leave them open.
  std::array<OsHandle, kMaxHandles> handles;
  std::array<std::int64_t, kMaxHandles> values{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t value =
        LoadHandle(packet.data() + frame.size() + i * kHandleBytes);
    values[i] = value;
    absl::StatusOr<OsHandle> handle;
    const auto seen = values.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(values.begin(), seen, value) != seen) {
      handle = absl::DataLossError(
          absl::StrCat("it names the handle ", value, " twice"));
    } else if (end == End::kServer) {
      handle = Pull(peer.process, value);
    } else {
      handle = TakePushed(value);
    }
    if (!handle.ok()) {
      // A client that left takes its handles along, and is no liar.
      return end == End::kServer && PeerLeft() ? absl::UnavailableError("")
                                               : handle.status();
    }
    handles[i] = *std::move(handle);
  }
  // A client closes its handles after the pipe. While that is open the numbers
  // mean what they meant when they were sent; later they may be another's.
  if (count > 0 && end == End::kServer &&
      OtherEndIsClosed(Borrowed(pipe).get())) {
    return absl::UnavailableError("");
  }
  Message message;
  message.type = header.type;
  message.payload.assign(frame.begin() + kFrameHeaderSize, frame.end());
  message.handles.reserve(count);
  std::move(handles.begin(),
            handles.begin() + static_cast<std::ptrdiff_t>(count),
            std::back_inserter(message.handles));
  return message;
}

bool Channel::State::PeerLeft() const {
  return OtherEndIsClosed(Borrowed(pipe).get()) || PeerEnds();
}

bool Channel::State::PeerEnds() const {
  const std::intptr_t process = peer.process.get();
  return peer.credentials.pid != CurrentProcessId() &&
         WaitForHandles(absl::MakeConstSpan(&process, 1),
                        Deadline::In(kPeersEnd), {}, "")
             .ok();
}

absl::Status Channel::State::Unpark(std::uint32_t count) {
  const MutexLock lock(mutex);
  if (count > parked.size()) {
    return absl::DataLossError(absl::StrCat("it says that ", count,
                                            " handles were taken, where ",
                                            parked.size(), " were sent"));
  }
  parked.erase(parked.begin(), parked.begin() + count);
  return absl::OkStatus();
}

void Channel::State::UnparkLast(std::size_t count) {
  const MutexLock lock(mutex);
  parked.resize(parked.size() - std::min(count, parked.size()));
}

bool Channel::State::HasParked() {
  const MutexLock lock(mutex);
  return !parked.empty();
}

void Channel::State::ReadTaken() {
  if (!reading.TryLock()) return;  // Whoever reads sees them himself.
  const MutexLock lock(reading, std::adopt_lock);
  const Borrowed borrowed(pipe);
  std::array<std::uint8_t, kTakenBytes> message;
  while (PeekAhead(borrowed.get(), absl::MakeSpan(message)) == kTakenBytes &&
         DecodeTaken(message) != 0) {
    if (!ReadMessage(borrowed.get(), read_event, absl::MakeSpan(message),
                     absl::InfinitePast(), {}, "")
             .ok() ||
        !Unpark(DecodeTaken(message)).ok()) {
      return;
    }
  }
}

void Channel::State::AwaitTaken() {
  const Borrowed borrowed(pipe);
  const Deadline deadline = Deadline::In(kLinger);
  std::vector<std::uint8_t> packet;
  while (HasParked()) {
    packet.resize(kMaxPacket);
    absl::StatusOr<std::size_t> size =
        ReadMessage(borrowed.get(), read_event, absl::MakeSpan(packet),
                    deadline, {}, "word of handles");
    if (!size.ok()) return;
    const auto message = absl::MakeConstSpan(packet.data(), *size);
    const std::uint32_t taken = DecodeTaken(message);
    // What else comes is dropped, with the handles in it.
    if (!(taken != 0 ? Unpark(taken) : Decode(message).status()).ok()) return;
  }
}

void Channel::State::DropUnread() {
  if (end == End::kServer || peer_is_hostile || pipe == 0) return;
  const Borrowed borrowed(pipe);
  std::vector<std::uint8_t> packet;
  while (PeekAhead(borrowed.get(), {}) != 0) {
    packet.resize(kMaxPacket);
    absl::StatusOr<std::size_t> size =
        ReadMessage(borrowed.get(), read_event, absl::MakeSpan(packet),
                    absl::InfinitePast(), {}, "");
    if (!size.ok()) return;
    const auto message = absl::MakeConstSpan(packet.data(), *size);
    if (DecodeTaken(message) == 0 && !Decode(message).ok()) return;
  }
}

}  // namespace vmm::platform
