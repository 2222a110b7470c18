// What a channel over a named pipe keeps beside the pipe; internal to
// platform/.
#ifndef VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_WIN_H_
#define VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_WIN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_win.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Behind the error of a process that may not duplicate handles into, or out of,
// its peer.
inline constexpr char kNoDuplicates[] =
    " (OpenProcess with PROCESS_DUP_HANDLE is refused). Run both as one user "
    "with one integrity level, or let the one with more rights listen.";

struct Channel::State {
  enum class End { kServer, kClient };

  // The channel over `pipe`, connected to `peer`.
  static absl::StatusOr<Channel> MakeChannel(OsHandle pipe, Peer peer, End end);

  // A call in progress. Notes that the channel is in use; the last one to
  // leave a broken channel hangs up.
  class Use {
   public:
    explicit Use(Channel& channel);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // False when the channel is closed.
    bool allowed() const { return state_ != nullptr; }

   private:
    Channel& channel_;
    std::shared_ptr<State> state_;
  };

  // The message that `packet` (all of one) is, with its handles taken over.
  // UNAVAILABLE when its sender hung up or ended, and the handles with him;
  // PERMISSION_DENIED when this process may not duplicate them; DATA_LOSS.
  absl::StatusOr<Message> Decode(absl::Span<const std::uint8_t> packet);
  // Whether the peer has hung up, or its process ends.
  bool PeerLeft() const;
  // Whether the peer's process has ended, or does so at this moment.
  bool PeerEnds() const;
  // Closes `count` parked handles. DATA_LOSS when there are not so many.
  absl::Status Unpark(std::uint32_t count) ABSL_LOCKS_EXCLUDED(mutex);
  // Closes the last `count`, whose message was not sent.
  void UnparkLast(std::size_t count) ABSL_LOCKS_EXCLUDED(mutex);
  bool HasParked() ABSL_LOCKS_EXCLUDED(mutex);
  // Reads what the peer says of parked handles, if that comes next.
  void ReadTaken();
  // Waits, but not for long, until the peer has taken all parked handles.
  void AwaitTaken();
  // Takes over and closes the handles in messages that nobody received.
  void DropUnread();
  // Ends what is read and sent here, for the pipe is closed next. Returns the
  // handles that the peer has not taken. They must be closed after the pipe:
  // until then the peer may duplicate them by their numbers. Of a second call
  // nothing is left to do.
  std::vector<OsHandle> LetGo() ABSL_LOCKS_EXCLUDED(mutex);

  End end = End::kServer;
  Peer peer;
  std::intptr_t pipe = 0;  // The channel's, until that is closed.
  OsHandle read_event;
  OsHandle write_event;
  OsHandle taken_event;
  OsHandle broken_event;  // Set for good by Break().
  // After a message that broke a rule nothing that it names is believed.
  bool peer_is_hostile = false;

  Mutex reading;  // Held by who reads from the pipe.
  Mutex mutex;
  int users ABSL_GUARDED_BY(mutex) = 0;
  bool broken ABSL_GUARDED_BY(mutex) = false;
  // In the order in which they were sent. No deque: libstdc++ takes memory for
  // an empty one, and a destructor has perhaps none.
  std::vector<OsHandle> parked ABSL_GUARDED_BY(mutex);
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_WIN_H_
