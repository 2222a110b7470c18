// Bytes and descriptors that no Channel sends: whoever sends them loses the
// connection, and nothing else happens.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "platform/ipc/channel.h"
#include "platform/ipc/frame.h"
#include "platform/os/close_elsewhere_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::RegisterChild;

using Packet = std::vector<std::uint8_t>;

// Sends `packet` and `count` times `memory` past all rules of Channel.
void SendRaw(const Channel& channel, const Packet& packet, std::size_t count,
             const OsHandle& memory) {
  iovec part = {const_cast<std::uint8_t*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<std::uint64_t> control(CMSG_SPACE(count * sizeof(int)) / 8 + 1);
  if (count > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> fds(count, RawFd(memory));
    std::memcpy(CMSG_DATA(rights), fds.data(), count * sizeof(int));
  }
  Check(::sendmsg(RawFd(channel.handle()), &message, MSG_NOSIGNAL) ==
            static_cast<ssize_t>(packet.size()),
        "sendmsg() failed");
}

Packet Frame(const FrameHeader& header, std::size_t payload) {
  const auto bytes = EncodeFrameHeader(header);
  Packet packet(bytes.begin(), bytes.end());
  packet.resize(packet.size() + payload, 0xAB);
  return packet;
}

// The most handles of a message that may be sent here: SCM_MAX_FD. qemu-user
// opens more than fit into a receiver's buffer, and loses those.
std::uint16_t MostSent() {
  return testing::IsEmulated() ? kMaxHandles + 1 : 253;
}

class HostileChannelTest : public OsTest {
 protected:
  // What a fresh channel's Receive answers to `packet` with `count`
  // descriptors. After a refusal the channel must be closed, at both ends, and
  // no descriptor of those that came may be open.
  absl::Status Answer(const Packet& packet, std::size_t count = 0) {
    auto [peer, ours] = Must(Channel::Pair());
    SendRaw(peer, packet, count, memory_);
    const auto before = testing::OpenHandles();
    const absl::Status status = ours.Receive(Late()).status();
    if (!status.ok()) {
      // What it did not take is dropped on another thread, which has a socket.
      EXPECT_TRUE(
          ComesTrue([] { return NotYetClosed(Connections::kOfPeers) == 0; }));
      EXPECT_EQ(testing::OpenHandles(), before);
      EXPECT_FALSE(ours.is_open());
      EXPECT_TRUE(peer.WaitForHangUp(Late()).ok());
      EXPECT_TRUE(absl::IsUnavailable(ours.Receive(Late()).status()));
    }
    return status;
  }

  OsHandle memory_ = MemoryWith("secret");
};

TEST_F(HostileChannelTest, APlainFrameIsTaken) {
  EXPECT_TRUE(Answer(Frame({1, 5, 2}, 5), 2).ok());
}

TEST_F(HostileChannelTest, GarbageIsDataLoss) {
  const absl::Status status = Answer(Bytes("GET / HTTP/1.1\r\nHost: x\r\n"));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("magic"));
}

TEST_F(HostileChannelTest, AnEmptyPacketIsDataLoss) {
  EXPECT_TRUE(absl::IsDataLoss(Answer({})));
}

TEST_F(HostileChannelTest, Pitfall10AnEmptyPacketThatCarriesAHandleIsDataLoss) {
  EXPECT_TRUE(absl::IsDataLoss(Answer({}, 1)));
}

TEST_F(HostileChannelTest, AFrameCutAtEveryByteIsDataLoss) {
  const Packet whole = Frame({1, 40, 1}, 40);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Packet cut(whole.begin(), whole.begin() + size);
    EXPECT_TRUE(absl::IsDataLoss(Answer(cut, 1))) << size;
  }
}

TEST_F(HostileChannelTest, EveryFlippedBitIsDataLossOrAnotherType) {
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderSize; ++bit) {
    Packet packet = Frame({1, 8, 1}, 8);
    packet[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const absl::Status status = Answer(packet, 1);
    const bool is_type = bit / 8 == 6 || bit / 8 == 7;
    EXPECT_EQ(status.code(),
              is_type ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << "bit " << bit;
  }
}

TEST_F(HostileChannelTest, ANewerVersionIsDataLossThatSaysSo) {
  Packet packet = Frame({1, 0, 0}, 0);
  packet[4] = 2;
  const absl::Status status = Answer(packet);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version is 2"));
}

TEST_F(HostileChannelTest, AStatedLengthThatIsNotTrueIsDataLoss) {
  for (const std::uint32_t stated : {0u, 9u, 11u, 32768u, 32769u, 0x7fffffffu,
                                     0x80000000u, 0xfffffff0u, 0xffffffffu}) {
    EXPECT_TRUE(absl::IsDataLoss(Answer(Frame({1, stated, 0}, 10)))) << stated;
  }
}

TEST_F(HostileChannelTest, APacketOverTheLimitIsDataLoss) {
  for (const std::uint32_t extra : {1u, 2u, 4096u, 65536u}) {
    const std::uint32_t size = kMaxPayload + extra;
    const absl::Status status = Answer(Frame({1, size, 1}, size), 1);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("32784"));
  }
}

TEST_F(HostileChannelTest, Pitfall12FewerHandlesThanStatedAreDataLoss) {
  for (std::uint16_t stated = 1; stated <= kMaxHandles; ++stated) {
    EXPECT_TRUE(absl::IsDataLoss(Answer(Frame({1, 4, stated}, 4), stated - 1)));
  }
}

TEST_F(HostileChannelTest, Pitfall12MoreHandlesThanStatedAreClosed) {
  for (std::uint16_t stated = 0; stated <= kMaxHandles; ++stated) {
    EXPECT_TRUE(absl::IsDataLoss(Answer(Frame({1, 4, stated}, 4), stated + 1)));
  }
}

TEST_F(HostileChannelTest, Pitfall12AsManyAsTheSystemMovesAreClosed) {
  for (const std::uint16_t count : {17, 18, 32, 64, 128, 252, 253}) {
    if (count > MostSent()) break;
    const absl::Status status = Answer(Frame({1, 4, count}, 4), count);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("came with more than 16 handles"));
  }
}

// Also those that this process never had, while the connection's ends are there.
TEST_F(HostileChannelTest, Pitfall12OfTooManyNoneIsLeftInTheQueue) {
  for (const std::uint16_t count : {17, 64, 253}) {
    if (count > MostSent()) break;
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const OsHandle reads = OsHandle::Adopt(ends[0]);
    OsHandle writes = OsHandle::Adopt(ends[1]);
    auto [peer, ours] = Must(Channel::Pair());
    SendRaw(peer, Frame({1, 4, count}, 4), count, writes);
    writes.Reset();
    EXPECT_TRUE(absl::IsDataLoss(ours.Receive(Late()).status()));
    EXPECT_TRUE(ComesTrue([&] {
      pollfd event = {RawFd(reads), 0, 0};
      return ::poll(&event, 1, 0) == 1 && (event.revents & POLLHUP) != 0;
    })) << count;
  }
}

// Receives too many handles with room for 60, again and again, beside a thread
// that needs a descriptor all the time.
int ReceiveTooManyBesideOthers(const std::vector<std::string>&) {
  const OsHandle memory = MemoryWith("secret");
  std::atomic<bool> done = false;
  std::atomic<int> failed = 0;
  std::mutex finding;  // While the limit is being found there is no room.
  std::thread other([&] {
    while (!done) {
      {
        const std::lock_guard lock(finding);
        const int fd = ::fcntl(RawFd(memory), F_DUPFD_CLOEXEC, 0);
        if (fd < 0) ++failed;
        if (fd >= 0) ::close(fd);
      }
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20; ++i) {
    auto [peer, ours] = Must(Channel::Pair());
    SendRaw(peer, Frame({1, 4, MostSent()}, 4), MostSent(), memory);
    absl::Status status;
    {
      std::optional<DescriptorLimit> limit;
      {
        const std::lock_guard lock(finding);
        limit.emplace(60);
      }
      status = ours.Receive(Late()).status();
    }
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("came with more than 16 handles"));
    EXPECT_TRUE(
        ComesTrue([] { return NotYetClosed(Connections::kOfPeers) == 0; }));
  }
  done = true;
  other.join();
  EXPECT_EQ(failed, 0);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kReceiveTooManyBesideOthers = RegisterChild(
    "receive_too_many_beside_others", &ReceiveTooManyBesideOthers);

TEST_F(HostileChannelTest, Pitfall15TooManyHandlesTakeNobodysDescriptors) {
  EXPECT_EQ(Child::Start("receive_too_many_beside_others", {}).Wait(), 0);
}

TEST_F(HostileChannelTest, UnknownControlDataIsDataLoss) {
  if (testing::IsEmulated())
    GTEST_SKIP() << "qemu-user: knows no SO_TIMESTAMPNS";
  auto [peer, ours] = Must(Channel::Pair());
  const int on = 1;
  ASSERT_EQ(::setsockopt(RawFd(ours.handle()), SOL_SOCKET, SO_TIMESTAMPNS, &on,
                         sizeof(on)),
            0);
  SendRaw(peer, Frame({1, 4, 2}, 4), 2, memory_);
  const absl::Status status = ours.Receive(Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("control data"));
}

TEST_F(HostileChannelTest, TheErrorNamesThePeerAndNoneOfItsBytes) {
  const absl::Status status = Answer(Bytes("VMSX-secret-secret-secret"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(HasSubstr("secret")));
}

TEST_F(HostileChannelTest, RandomPacketsAreTakenOrDataLoss) {
  std::mt19937 random(20);
  for (int i = 0; i < 3000; ++i) {
    Packet packet(random() % 80);
    for (std::uint8_t& byte : packet) {
      byte = static_cast<std::uint8_t>(random());
    }
    const std::size_t count = random() % 20;
    if (i % 2 == 0 && packet.size() >= kFrameHeaderSize) {
      // Right in all but one byte, to get further in.
      const auto good = EncodeFrameHeader(
          {1, static_cast<std::uint32_t>(packet.size() - kFrameHeaderSize),
           static_cast<std::uint16_t>(count)});
      std::copy(good.begin(), good.end(), packet.begin());
      packet[random() % kFrameHeaderSize] = static_cast<std::uint8_t>(random());
    }
    const absl::Status status = Answer(packet, count);
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
}

TEST_F(HostileChannelTest, AHostilePeerHarmsNoOtherConnection) {
  auto good = Must(Channel::Pair());
  Must(good.first.Send(1, Bytes("before"), {}, Late()));
  EXPECT_TRUE(absl::IsDataLoss(Answer(Bytes("garbage"), MostSent())));
  EXPECT_EQ(Text(Must(good.second.Receive(Late())).payload), "before");
  Must(good.first.Send(1, Bytes("after"), {}, Late()));
  EXPECT_EQ(Text(Must(good.second.Receive(Late())).payload), "after");
}

// Receives a message of args[0] handles with room for args[1], and again with
// room enough.
int ReceiveAtTheLimit(const std::vector<std::string>& args) {
  const std::size_t count = std::stoul(args[0]);
  OsHandle memory = MemoryWith("secret");
  auto [peer, ours] = Must(Channel::Pair());
  // A message before it, so that a stale control buffer would hold a number.
  SendRaw(peer, Frame({1, 4, 1}, 4), 1, memory);
  EXPECT_EQ(Must(ours.Receive(Late())).handles.size(), 1u);
  const std::size_t before = testing::OpenHandles().size();

  SendRaw(peer, Frame({1, 4, static_cast<std::uint16_t>(count)}, 4), count,
          memory);
  absl::Status status;
  {
    DescriptorLimit limit(std::stoi(args[1]));
    status = ours.Receive(Late()).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit"));
  // But for the reference to the peer, of which none may be left.
  EXPECT_LE(testing::OpenHandles().size(), before);
  // The peer can be told, and what it sent is whole once there is room.
  Must(ours.Send(1, {}, {}, Late()));
  EXPECT_EQ(Must(ours.Receive(Late())).handles.size(), count);
  EXPECT_EQ(testing::OpenHandles().size(), before);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kReceiveAtTheLimit =
    RegisterChild("receive_at_the_limit", &ReceiveAtTheLimit);

TEST_F(HostileChannelTest, Pitfall09TruncatedControlDataIsAnError) {
  for (const char* room : {"0", "1", "2"}) {
    EXPECT_EQ(Child::Start("receive_at_the_limit", {"3", room}).Wait(), 0);
  }
}

TEST_F(HostileChannelTest, Pitfall09AHandleDroppedFromFewerIsAnErrorToo) {
  EXPECT_EQ(Child::Start("receive_at_the_limit", {"1", "0"}).Wait(), 0);
}

TEST_F(HostileChannelTest, Pitfall15SixteenHandlesAtTheLimitAreAllClosed) {
  EXPECT_EQ(Child::Start("receive_at_the_limit", {"16", "15"}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::platform
