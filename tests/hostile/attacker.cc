// A peer that says what honest ones say, and says it wrong. args: the address,
// the file of sessions, a seed, how many sessions, a directory to mount at.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "platform/ipc/frame.h"
#include "tests/hostile/blocking_mount.h"
#include "tests/hostile/recording.h"
#include "tests/ipc/vmm_ipc_test.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::OsHandle;
using Packet = std::vector<std::uint8_t>;

int RawFd(const OsHandle& handle) { return static_cast<int>(handle.get()); }

class Attacker {
 public:
  Attacker(const std::vector<std::string>& args, int blocking)
      : address_(args[0]),
        sessions_(Load(args[1])),
        random_(std::stoul(args[2])),
        blocking_(blocking),
        wrong_{::memfd_create("unsealed", MFD_CLOEXEC),
               Sealed(),
               ::open("/dev/null", O_RDWR | O_CLOEXEC),
               ::open("/dev/zero", O_RDWR | O_CLOEXEC),
               ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
               ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC),
               ::eventfd(0, EFD_CLOEXEC),
               ::epoll_create1(EPOLL_CLOEXEC),
               ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    int ends[2] = {-1, -1};
    platform::Check(::pipe2(ends, O_CLOEXEC) == 0, "pipe2() failed");
    wrong_.insert(wrong_.end(), {ends[0], ends[1]});
    platform::Check(std::ranges::count(wrong_, -1) == 0, "no descriptor");
  }

  void Session() {
    absl::StatusOr<Channel> server = Channel::Connect(address_, {}, Late());
    if (!server.ok()) return;  // Its queue is full, or it has no descriptor.
    const auto& session = sessions_[Below(sessions_.size())];
    const unsigned plan = Below(100);
    if (plan < 5) return;  // Hangs up at once.
    if (plan < 15) {       // Is silent, from one of its messages on.
      Say(*server, session, Below(session.size() + 1), 0);
      silent_.push_back(*std::move(server));
      if (silent_.size() > 24) silent_.pop_front();
      return;
    }
    if (plan < 25) {  // Repeats one for as long as there is room.
      const std::size_t which = Below(session.size());
      Say(*server, session, which, 0);
      const Packet packet = PacketOf(session[which]);
      for (int i = 0; i < 300 && Send(*server, packet, Some(session[which]));
           ++i) {
      }
      return;
    }
    if (plan < 35) {  // Noise.
      for (unsigned i = Below(4); i <= 4; ++i) {
        Packet noise(Below(200));
        for (std::uint8_t& byte : noise) byte = Below(256);
        if (!Send(*server, noise, Wrong(Below(3)))) return;
      }
      Listen(*server);
      return;
    }
    Say(*server, session, session.size(), 40);
  }

 private:
  static int Sealed() {
    const int fd = ::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    platform::Check(::ftruncate(fd, 2 << 20) == 0, "ftruncate() failed");
    ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
  }

  unsigned Below(std::size_t end) {
    return end == 0 ? 0 : static_cast<unsigned>(random_() % end);
  }

  static Packet PacketOf(const Recorded& message) {
    const auto header = platform::EncodeFrameHeader(
        {message.type, static_cast<std::uint32_t>(message.payload.size()),
         static_cast<std::uint16_t>(message.handles)});
    Packet packet(header.begin(), header.end());
    packet.insert(packet.end(), message.payload.begin(), message.payload.end());
    return packet;
  }

  std::vector<int> Wrong(std::size_t count) {
    std::vector<int> fds(count);
    for (int& fd : fds) fd = wrong_[Below(wrong_.size())];
    // Each one holds a thread of the server's until this process ends.
    if (!fds.empty() && blocking_ >= 0 && blocked_ < 3 && Below(50) == 0) {
      fds[0] = blocking_;
      ++blocked_;
    }
    return fds;
  }

  // Handles as the message has them: a lifeline, mostly, or of memory.
  std::vector<int> Some(const Recorded& message) {
    if (Below(3) == 0) return Wrong(message.handles);
    return std::vector<int>(message.handles, wrong_[Below(2) == 0 ? 1 : 10]);
  }

  void Mutate(Packet& packet, std::vector<int>& fds) {
    switch (Below(8)) {
      case 0:
        packet.resize(Below(packet.size() + 1));
        break;
      case 1:
        packet.resize(packet.size() + Below(64));
        break;
      case 2:  // The header.
        packet[Below(std::min<std::size_t>(packet.size(), 16))] = Below(256);
        break;
      case 3:
        fds = Wrong(Below(17));
        break;
      case 4:
        fds.clear();
        break;
      case 5: {  // A number becomes a large one.
        const std::size_t at = Below(packet.size());
        for (std::size_t i = at; i < std::min(at + 4, packet.size()); ++i) {
          packet[i] = 0xFF;
        }
        break;
      }
      default:
        for (unsigned i = Below(4); i <= 4 && !packet.empty(); ++i) {
          packet[Below(packet.size())] ^= 1u << Below(8);
        }
    }
  }

  // Says the first `count` messages; of a hundred, `wrong` are not as recorded.
  void Say(Channel& server, const std::vector<Recorded>& session,
           std::size_t count, unsigned wrong) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t which =
          Below(100) < wrong / 4 ? Below(session.size()) : i;
      Packet packet = PacketOf(session[which]);
      std::vector<int> fds = Some(session[which]);
      if (Below(100) < wrong) Mutate(packet, fds);
      if (!Send(server, packet, fds)) return;
      if (Below(2) == 0) Listen(server);
    }
    if (wrong != 0) Listen(server);
  }

  // False when the server has hung up or there is no room.
  static bool Send(const Channel& server, const Packet& packet,
                   const std::vector<int>& fds) {
    iovec part = {const_cast<std::uint8_t*>(packet.data()), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<std::uint64_t> control(
        CMSG_SPACE(fds.size() * sizeof(int)) / 8 + 1);
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    return ::sendmsg(RawFd(server.handle()), &message,
                     MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }

  // Takes what the server says within a moment.
  static void Listen(Channel& server) {
    while (server.Receive(absl::Now() + absl::Milliseconds(1)).ok()) {
    }
  }

  const std::string address_;
  const std::vector<std::vector<Recorded>> sessions_;
  std::mt19937_64 random_;
  const int blocking_;
  int blocked_ = 0;
  std::vector<int> wrong_;
  std::deque<Channel> silent_;
};

int Attack(const std::vector<std::string>& args) {
  const BlockingMount mount(args[4]);
  const int fd = mount.file().has_value() ? RawFd(mount.file()) : -1;
  Attacker attacker(args, fd);
  const std::uint64_t count = std::stoul(args[3]);
  for (std::uint64_t i = 0; i < count; ++i) attacker.Session();
  return fd >= 0 ? 0 : 3;
}
const bool kAttacker = RegisterChild("hostile-peer", &Attack);

}  // namespace
}  // namespace vmm::testing
