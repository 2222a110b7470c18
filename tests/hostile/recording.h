// What an honest client and its server say to each other, to be said otherwise.
#ifndef VMMSHARE_TESTS_HOSTILE_RECORDING_H_
#define VMMSHARE_TESTS_HOSTILE_RECORDING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "platform/ipc/channel.h"

namespace vmm::testing {

// A message of a client.
struct Recorded {
  std::uint16_t type = 0;
  std::size_t handles = 0;
  std::vector<std::uint8_t> payload;
};

// Of one connection, in order.
using Session = std::vector<Recorded>;

// Stands between clients and a server: passes messages and handles on, both
// ways, and keeps what the clients said.
class Relay {
 public:
  // Listens in `directory` for clients of the server at `server`.
  Relay(const std::string& directory, std::string server);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::string& address() const { return listener_.address(); }
  // Ends, and returns what was said: a session a connection.
  std::vector<Session> Finish();

 private:
  void Serve();
  void PassOn(platform::Channel client);

  const std::string server_;
  platform::Listener listener_;
  platform::CancelEvent end_;
  std::mutex mutex_;
  std::vector<Session> sessions_;  // Guarded by mutex_.
  std::vector<std::thread> each_;  // Of acceptor_ until it was joined.
  std::thread acceptor_;
};

// A file of sessions, for another process.
void Save(const std::vector<Session>& sessions, const std::string& path);
std::vector<Session> Load(const std::string& path);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_HOSTILE_RECORDING_H_
