// SessionServer: accepts connections and serves each on a thread of its own,
// so that a slow or hostile peer delays nobody; internal to vmm/.
//
// It is what an Endpoint and a keeper have in common. Limits hold for all
// connections, for those of a user and for those of a process. Who comes when
// one is reached is told so, by RESOURCE_EXHAUSTED in a kAbort message, and
// tries again (busy.h).
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_SESSION_SERVER_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_SESSION_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_handle.h"
#include "vmm/share/internal/peer_limits.h"

namespace vmm {

class SessionServer {
 public:
  // Connections of peers that were turned away and have not hung up yet: so
  // many are kept at most, and so many of one process.
  static constexpr std::size_t kMaxTurnedAway = 32;
  static constexpr std::size_t kMaxTurnedAwayOfProcess = 4;

  struct Options {
    platform::ListenerOptions listener = {};
    platform::PeerPolicy peers = {};
    PeerLimits limits = {};
    std::string owner = {};   // "the owner": who has the sessions.
    std::string remedy = {};  // What raises the limits.
    // These and `serve` are called on threads of the server's: what they throw ends
    // the process.
    // Told what went wrong beside the sessions.
    std::function<void(const absl::Status&)> failed;
    // Told of each peer that is turned away, by `peers` or for want of room. May
    // be empty.
    platform::TellOfRefused turned_away = {};
    // Lets go of what is kept of peers that have ended; whether anything is kept
    // of others that hung up. Called while there are peers, or this says so.
    std::function<bool()> tidy;
  };

  // One connection. Its thread's own, but for what the server says.
  struct Session {
    Session(platform::Channel c, std::uint64_t number)
        : id(number), peer(c.peer()), channel(std::move(c)) {}
    const std::uint64_t id;                // Of no other session of the server.
    const platform::PeerCredentials peer;  // Who connected.
    platform::Channel channel;
    // Set by its thread once what it holds is limited by other means.
    std::atomic<bool> is_counted{true};

   private:
    friend class SessionServer;
    std::thread thread;
    std::atomic<bool> done{false};
  };

  // Listens, and accepts nobody yet. Errors as platform::Listener::Bind.
  // REQUIRES: `options` have `failed` and `tidy`.
  static absl::StatusOr<std::unique_ptr<SessionServer>> Bind(Options options);
  // Calls `serve` for each connection, on a thread of its own; when it returns
  // the connection is closed. RESOURCE_EXHAUSTED when no thread can be had.
  // Called once.
  absl::Status Start(std::function<void(Session&)> serve);
  // Ends all sessions, which `serve` finds out by stop(). Called before
  // destruction, in the process that started it.
  void Stop();
  ~SessionServer() { Stop(); }
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

  // For a forked child, where no thread is: nobody must be able to dial it.
  // Changes nothing but the listener.
  void CloseListener() {
    const platform::Listener closed = std::move(listener_);
  }

  const std::string& address() const { return address_; }
  const platform::CancelEvent& stop() const { return stop_; }
  // Peers that were turned away.
  std::uint64_t refused() const { return refused_; }

 private:
  SessionServer(Options options, platform::Listener listener,
                platform::CancelEvent stop, platform::OsHandle spare);

  // The rest is the acceptor's.
  void AcceptLoop();
  void Admit(platform::Channel channel);
  absl::Status CheckRoomFor(const platform::PeerCredentials& peer) const;
  absl::Status CheckDescriptors() const;
  void TurnAway(platform::Channel channel, const absl::Status& why);
  bool TurnAwayOnSpare();
  void ForgetFinished();

  const Options options_;
  platform::Listener listener_;
  const std::string address_;
  const platform::CancelEvent stop_;
  std::function<void(Session&)> serve_;
  std::thread acceptor_;
  std::atomic<std::uint64_t> refused_{0};

  // Besides stop_, which a system that refuses every look at descriptors does not
  // let anybody ask: then the acceptor fails again and again, and must end all the
  // same.
  platform::Mutex mutex_;
  platform::CondVar stopping_;
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the acceptor, and of Stop() after its end.
  std::uint64_t next_session_ = 1;
  std::list<Session> sessions_;
  std::deque<platform::Channel> turned_away_;
  // Given up for a moment to tell a peer that there are no descriptors.
  platform::OsHandle spare_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_SESSION_SERVER_H_
