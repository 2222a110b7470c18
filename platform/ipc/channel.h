// Channel: messages and handles to one known peer process on this machine.
//
// A Listener waits at an address; Channel::Connect dials it. Both ends know
// who the other is before the first byte is read, and who sent each message
// before it is looked at: the operating system says so, not the peer. Messages
// keep their boundaries, carry at most kMaxHandles handles, and arrive whole or
// not at all.
//
// Bytes from a peer are hostile, and so are handles: a message that breaks a
// rule closes the connection, it is never repaired. Every call that waits takes a
// deadline.
//
//   absl::StatusOr<Listener> listener = Listener::Bind({}, PeerPolicy{});
//   ... hand listener->address() to the peer ...
//   absl::StatusOr<Channel> channel = listener->Accept(deadline);
//   absl::StatusOr<Message> message = channel->Receive(deadline);
//
// Linux: pathname sockets (SOCK_SEQPACKET) in a directory, and SCM_RIGHTS. One
// that is made here has mode 0700; one that is named may let other users in.
// Windows: named pipes in message mode; the listener's side
// duplicates handles into the client's process, and out of it. There a name is
// `\\.\pipe\vmmshare-NAME`, the directory is always `\\.\pipe`, Adopt() takes
// only an end that this process opened, and handles that a client sent are lost
// if it hangs up or ends before they are received, with their message and what
// came after it: UNAVAILABLE. Closing its end waits two seconds for it.
// docs/porting.md states the contract; docs/security.md the threats.
#ifndef VMMSHARE_PLATFORM_IPC_CHANNEL_H_
#define VMMSHARE_PLATFORM_IPC_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {

inline constexpr std::size_t kMaxHandles = 16;        // Of one message.
inline constexpr std::size_t kMaxPayload = 32 << 10;  // Bytes of one message.

// Whether handles may stay open in this process when it hangs up while the peer
// sends them: Windows, where nobody owns a message that comes in that instant.
// Who leaves a peer that sends of its own accord waits for its hang-up first.
extern const bool kHangingUpMayLoseHandles;

// Who may be at the other end. The effective user of this process always may;
// nobody else may unless named, root included.
struct PeerPolicy {
  std::vector<UserId> also_allowed = {};
};

// Whether this process's user is no identity here: its number stands for every
// user whom this user namespace does not map, so that no peer in it accepts this
// process. False on Windows.
bool CurrentUserIsUnknown();

// What the operating system says about the peer.
struct PeerCredentials {
  UserId user;
  std::int64_t pid = 0;  // For messages; 0 when it is in a hidden namespace.
};

struct Message {
  std::uint16_t type = 0;  // Meaning is the caller's; echoed as sent.
  std::vector<std::uint8_t> payload;
  std::vector<OsHandle> handles;  // Owned, not inherited by children.
};

// Wakes calls that wait on a channel or listener, from any thread. Once
// notified it stays so until it is reset. Thread-safe.
class CancelEvent {
 public:
  static absl::StatusOr<CancelEvent> Create();
  // One that wakes also where `parent` would, which must outlive it and stay
  // where it is, and that may be used again.
  static absl::StatusOr<CancelEvent> CreateUnder(const CancelEvent& parent);
  // REQUIRES of all: not moved from.
  void Notify() const;
  // Takes back what Notify() did here; a parent stays notified.
  void Reset() const;
  // Whether this one was, whatever its parent.
  bool IsNotified() const;
  const OsHandle& handle() const { return handle_; }
  // Null without a parent.
  const OsHandle* parent() const { return parent_; }

 private:
  explicit CancelEvent(OsHandle handle) : handle_(std::move(handle)) {}
  OsHandle handle_;
  const OsHandle* parent_ = nullptr;
};

// One connection. Move-only. One thread may send while another receives;
// two threads must not do the same at once, and Close() and moves need every
// other call to have returned.
//
// After an error that ends the connection the channel is closed: the peer sees
// a hang-up, unread messages and the handles in them are dropped, and is_open()
// is false. Every later call answers UNAVAILABLE. (The socket's own descriptor
// stays until Close() or destruction, for another thread may be using it.)
// Send() that finds that the peer has hung up does not end it: what the peer
// said last can be received.
class Channel {
 public:
  // Connects to `address` (Listener::address()). Before connecting, the
  // socket's directory and the socket must belong to an allowed user or root
  // and the directory must not be writable by others, unless it is sticky
  // (PERMISSION_DENIED); after it, the server's credentials must be allowed
  // too, and there root is no exception. NOT_FOUND when nobody listens there;
  // INVALID_ARGUMENT for an address that is none; DEADLINE_EXCEEDED when the
  // listener's queue stays full.
  static absl::StatusOr<Channel> Connect(const std::string& address,
                                         const PeerPolicy& policy,
                                         Deadline deadline);

  // Two connected ends in this process, for tests and for passing one end to
  // a child. `policy` says who may speak at either.
  static absl::StatusOr<std::pair<Channel, Channel>> Pair(
      const PeerPolicy& policy = {});

  // Takes over a connected socket that the caller made (inherited from a
  // parent, say). It must be of the kind Pair() makes (INVALID_ARGUMENT), and
  // who made it allowed by `policy` (PERMISSION_DENIED). Children started later
  // do not inherit it. Closed when it is refused. (Windows: a named pipe that
  // was opened with FILE_FLAG_OVERLAPPED, in PIPE_READMODE_MESSAGE.)
  static absl::StatusOr<Channel> Adopt(OsHandle socket,
                                       const PeerPolicy& policy);

  // Sends one message. The handles stay the caller's and may be closed when
  // the call returns. Tried before it waits: a message that fits is sent whatever
  // `deadline` is.
  //
  // Nothing was sent, and the channel stays as it was:
  //   INVALID_ARGUMENT    above kMaxPayload or kMaxHandles; a handle is not open
  //   UNAVAILABLE         the peer hung up, or this end is closed
  //   RESOURCE_EXHAUSTED  until `deadline` the user had too many handles on their
  //                       way (Linux: ETOOMANYREFS)
  //   PERMISSION_DENIED   this process may not put handles into the peer
  //                       (Windows: it listens, and has fewer rights)
  // The channel is closed after every other error:
  //   DEADLINE_EXCEEDED   the peer does not read
  //   CANCELLED           by `cancel`
  absl::Status Send(std::uint16_t type, absl::Span<const std::uint8_t> payload,
                    absl::Span<const OsHandle* const> handles,
                    Deadline deadline, const CancelEvent* cancel = nullptr);

  // Receives one message.
  //
  // The channel stays usable after:
  //   DEADLINE_EXCEEDED   none came
  //   CANCELLED           by `cancel`
  //   RESOURCE_EXHAUSTED  this process has not enough descriptors left for the
  //                       handles (Linux): none is kept, and the message is there
  //                       for the next call, so that the peer can be told
  // It is closed after these, and every handle that came is closed, or being closed
  // on a thread that nobody waits for:
  //   UNAVAILABLE         the peer hung up and all it sent before was received, or
  //                       this end is closed
  //   DATA_LOSS           the message breaks the wire format, was cut, states
  //                       another number of handles than came, or handles were
  //                       dropped; or it carries one whose closing could block
  //                       (Linux: anything but memory, character devices, pipes
  //                       and objects like eventfds)
  //   PERMISSION_DENIED   the policy does not allow who sent it, of whose message
  //                       nothing was looked at; or this process may not take
  //                       handles out of the peer (Windows, as Send())
  //   RESOURCE_EXHAUSTED  too many handles that the peer's user sent block in being
  //                       closed
  // What throws for want of memory leaves the message to the next call, or the
  // channel is closed.
  absl::StatusOr<Message> Receive(Deadline deadline,
                                  const CancelEvent* cancel = nullptr);

  // Returns once the peer has received all that was sent from here: no handle of
  // it is on its way any more, of which the kernel allows a user few. That is
  // the system's word and not the peer's. DEADLINE_EXCEEDED, CANCELLED by
  // `cancel`, and the channel stays usable; UNAVAILABLE when the peer has hung
  // up or this end is closed. (Windows: at once; handles are the peer's when
  // they are sent.)
  absl::Status WaitUntilReceived(Deadline deadline,
                                 const CancelEvent* cancel = nullptr) const;

  // Returns once the peer has hung up; DEADLINE_EXCEEDED otherwise, CANCELLED
  // by `cancel`, UNAVAILABLE when this end is closed.
  absl::Status WaitForHangUp(Deadline deadline,
                             const CancelEvent* cancel = nullptr) const;

  // Who sent the message that was received last; before the first one, who
  // made the connection. These differ when a socket was handed on, by a launcher
  // to its child or by fork().
  PeerCredentials peer() const;

  // How many times another process began to speak: 0 before the first message,
  // and then 1 as long as the peer is one process. Who relies on OpenPeer() for
  // longer than one message looks whether this has changed. (Windows: always 1;
  // a pipe belongs to the process that opened it.)
  std::uint64_t speakers() const;

  // A reference to the process that sent the message received last, which
  // outlives the connection. The kernel attaches it to the message (SCM_PIDFD,
  // Linux 6.5); otherwise it is opened by process id and must be older than the
  // message.
  //   FAILED_PRECONDITION  before the first message, when nobody can know who will
  //                        speak (not on Windows)
  //   NOT_FOUND            the process has ended
  //   RESOURCE_EXHAUSTED   no descriptor was left for it
  //   UNIMPLEMENTED        the system cannot tell, as where the kernel attaches none
  //                        and the time of day was set since the channel was made,
  //                        by more than the process's age
  absl::StatusOr<Process> OpenPeer() const;

  // From now on the end of the peer's process ends the connection, as if it had
  // hung up: a child that it forked may have its socket, and never speak. Until
  // it has spoken the peer is who made the connection. NOT_FOUND when that has
  // ended already; RESOURCE_EXHAUSTED when no descriptor was left for it; OK, and
  // nothing changes, where the system cannot tell, and on Windows, where nothing is
  // inherited unasked.
  absl::Status EndWithItsProcess();

  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();  // Close().

  bool is_open() const { return socket_.has_value() && !broken_; }
  // Hangs up. Handles in messages that were not received are closed, and nobody
  // waits for that. (Linux: the peer sees it at once, unless another process may
  // have the socket, too: of Pair() and Adopt(), and after a fork. Then it sees
  // the end when all have closed it.)
  void Close();
  const OsHandle& handle() const { return socket_; }

 private:
  friend class Listener;
  // What a system keeps for a connection beside the socket: who may speak and
  // who does, on Windows the handles in transit.
  struct State;
  Channel(OsHandle socket, PeerCredentials peer, std::shared_ptr<State> state)
      : socket_(std::move(socket)),
        peer_(std::move(peer)),
        state_(std::move(state)) {}
  // Ends the connection after an error.
  void Break();
  bool PeerIsGone() const;

  OsHandle socket_;
  PeerCredentials peer_;  // Who made the connection.
  std::atomic<bool> broken_ = false;
  std::shared_ptr<State> state_;  // Ends before the socket does.
};

struct ListenerOptions {
  // The directory for the socket, an absolute path. Must exist, be a directory
  // and no link to one, belong to this user or root, and not be writable by
  // others unless it is sticky, where others can add files but not replace
  // ours. Empty: DefaultChannelDirectory().
  std::string directory = {};
  // The socket's name in it. Empty: 128 random bits.
  std::string name = {};
};

// The directory for sockets: $NVIDIA_DRA_LOCAL_IPC_DIR if set (shared between
// containers by Kubernetes' NVIDIA driver, mode 1777), else
// $XDG_RUNTIME_DIR/vmmshare, else /tmp/vmmshare-UID; the last two are made with
// mode 0700 if absent. Checked as ListenerOptions says: PERMISSION_DENIED when
// the directory belongs to somebody else or others may write to it. A variable
// that is set and does not serve is an error; none is passed over. Variables
// are ignored in a set-user-id program.
absl::StatusOr<std::string> DefaultChannelDirectory();

// Who was turned away, and why.
using TellOfRefused =
    std::function<void(const PeerCredentials& peer, const absl::Status& why)>;

// Waits for connections. When destroyed, but not in a forked child, it removes its
// socket file and hangs up on who waits. Move-only; Accept from one thread at a
// time.
//
// The socket file has mode 0600. When the policy names other users it has mode
// 0666, for they must reach it: then the check of who connects decides alone, in
// a directory that they may enter (not one of mode 0700).
class Listener {
 public:
  // Listens at a new address. The socket of a dead listener of this user's is
  // replaced, but not on a network file system that the kernel mounts, where it may
  // be a live one's of another machine; over FUSE and 9p it is, see
  // docs/lifetime.md.
  //   ALREADY_EXISTS     the name is taken by a live listener, another user's
  //                      socket or another kind of file
  //   INVALID_ARGUMENT   the path is too long for a socket or not absolute, or the
  //                      name has a directory part
  //   PERMISSION_DENIED  of the directory, as ListenerOptions says
  //   UNAVAILABLE        another process holds the directory's lock (flock) for a
  //                      second, which only chosen names need
  static absl::StatusOr<Listener> Bind(const ListenerOptions& options,
                                       PeerPolicy policy);

  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  // The next connection from an allowed peer. Others are closed before a byte
  // of theirs is read; the call goes on waiting and counts them.
  // DEADLINE_EXCEEDED, CANCELLED; RESOURCE_EXHAUSTED at the descriptor limit,
  // and when many connections block in being closed for what was sent over them
  // (the peer goes on waiting). REQUIRES: not moved from.
  absl::StatusOr<Channel> Accept(Deadline deadline,
                                 const CancelEvent* cancel = nullptr);

  // What peers pass to Channel::Connect.
  const std::string& address() const { return address_; }
  // From now on Accept says whom it turns away, which the peer is not told.
  void Tell(TellOfRefused tell) { tell_ = std::move(tell); }
  // How many peers Accept turned away.
  std::uint64_t refused() const { return refused_; }

 private:
  Listener(OsHandle socket, std::string address, PeerPolicy policy);
  // OK when `policy_` allows `peer`; else says why it is turned away.
  absl::Status Admit(const PeerCredentials& peer) const;
  void End();

  OsHandle socket_;
  std::string address_;
  PeerPolicy policy_;
  TellOfRefused tell_;
  std::uint64_t refused_ = 0;
  std::uint64_t owner_ = 0;    // Only this process removes the file (its mark),
  std::uint64_t file_id_ = 0;  // and only while it is this one.
  // Windows: the instances of the pipe that wait for clients.
  struct State;
  std::shared_ptr<State> state_;
};

// Whether `status` is the ALREADY_EXISTS of Listener::Bind() whose name a living
// process has, which is most likely another listener.
bool IsTakenByProcess(const absl::Status& status);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_CHANNEL_H_
