// Channels over named pipes whose process is refused memory: destructors need
// none, and a call that is refused some leaves the channel as it was.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "platform/ipc/channel.h"
#include "tests/os/win_test.h"
#include "tests/support/refused_memory.h"

namespace vmm::platform {
namespace {

using testing::OpenHandleCount;
using testing::refusal;
using testing::Refusal;

class ChannelMemoryTest : public WinTest {
 protected:
  ChannelMemoryTest() { Connect(); }

  void Connect() {
    auto [server, client] = Must(Channel::Pair());
    server_ = std::move(server);
    client_ = std::move(client);
  }

  // Destroys an end while all memory is refused.
  static void DestroyWithoutMemory(std::optional<Channel>& channel) {
    refusal = {0, /*lasts=*/true};
    channel.reset();
    refusal = {};
  }

  // On new channels, calls `then` for each request for memory of `call`, once
  // that and perhaps all later ones were refused; with the answer, which is
  // nothing when `call` threw. At last none was refused, and `call` answers
  // DEADLINE_EXCEEDED: it does wait.
  void RefuseEach(
      const std::function<absl::Status()>& call,
      const std::function<void(std::optional<absl::Status>)>& then) {
    for (const bool lasts : {false, true}) {
      bool refused = true;
      for (long nth = 0; refused && !HasFailure(); ++nth) {
        SCOPED_TRACE(::testing::Message()
                     << "request " << nth << (lasts ? " and all later" : ""));
        Connect();
        std::optional<absl::Status> status;
        refusal = {nth, lasts};
        try {
          status = call();
        } catch (const std::bad_alloc&) {
        }
        refused = std::exchange(refusal, {}).happened;
        if (!refused) {
          ASSERT_TRUE(status.has_value());
          EXPECT_TRUE(absl::IsDeadlineExceeded(*status)) << *status;
        }
        then(std::move(status));
      }
    }
  }

  // Of `from`, whose pipe is full, no message that was refused memory arrives
  // at `to`; the next one does, unless the refused one ended the connection.
  void ExpectNothingOfARefusedSend(std::optional<Channel>& from,
                                   std::optional<Channel>& to) {
    // Two of them have room.
    const std::vector<std::uint8_t> large(30'000);
    const OsHandle event = NewEvent();
    std::size_t handles = 0;
    RefuseEach(
        [&] {
          {
            const Refusal ours = std::exchange(refusal, {});
            Must(to->Send(1, Bytes("unread"), {}, Late()));
            Must(from->Send(7, large, {}, Late()));
            Must(from->Send(7, large, {}, Late()));
            handles = OpenHandleCount();
            refusal = ours;
          }
          return from->Send(8, large, {&event}, absl::Now());
        },
        [&](const std::optional<absl::Status>& status) {
          const bool threw = !status.has_value();
          if (threw) {
            EXPECT_TRUE(from->is_open());
            EXPECT_LE(OpenHandleCount(), handles) << "of the handle to send";
          } else {
            EXPECT_FALSE(status->ok());
          }
          EXPECT_EQ(Must(to->Receive(Late())).type, 7);
          EXPECT_EQ(Must(to->Receive(Late())).type, 7);
          if (threw) Must(from->Send(9, {}, {&event}, Late()));
          const absl::StatusOr<Message> next = to->Receive(Late());
          if (threw) {
            ASSERT_TRUE(next.ok()) << next.status();
            EXPECT_EQ(next->type, 9);
            EXPECT_EQ(next->handles.size(), 1u);
          } else {
            EXPECT_TRUE(absl::IsUnavailable(next.status())) << next.status();
          }
        });
  }

  std::optional<Channel> server_;
  std::optional<Channel> client_;
};

TEST_F(ChannelMemoryTest, AServersEndIsDestroyedWithoutMemory) {
  Must(server_->Send(7, Bytes("last"), {}, Late()));
  DestroyWithoutMemory(server_);
  EXPECT_EQ(Text(Must(client_->Receive(Late())).payload), "last");
  EXPECT_TRUE(absl::IsUnavailable(client_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientsEndIsDestroyedWithoutMemory) {
  Must(client_->Send(7, Bytes("last"), {}, Late()));
  DestroyWithoutMemory(client_);
  EXPECT_EQ(Text(Must(server_->Receive(Late())).payload), "last");
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientWithUnreadMessagesIsDestroyedWithoutMemory) {
  Must(server_->Send(7, Bytes("unread"), {}, Late()));
  DestroyWithoutMemory(client_);
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientWithParkedHandlesIsDestroyedWithoutMemory) {
  const OsHandle event = NewEvent();
  for (int i = 0; i < 3; ++i) {
    Must(client_->Send(7, {}, {&event, &event}, Late()));
  }
  DestroyWithoutMemory(client_);
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()))
      << "handles of a client that hung up";
}

TEST_F(ChannelMemoryTest, AnEndThatIsAssignedToNeedsNoMemory) {
  auto [server, client] = Must(Channel::Pair());
  refusal = {0, /*lasts=*/true};
  *server_ = std::move(server);
  *client_ = std::move(client);
  refusal = {};
  Must(server_->Send(7, Bytes("anew"), {}, Late()));
  EXPECT_EQ(Text(Must(client_->Receive(Late())).payload), "anew");
}

TEST_F(ChannelMemoryTest, AReceiveThatIsRefusedSomeTakesNoLaterMessage) {
  for (const bool at_the_client : {false, true}) {
    SCOPED_TRACE(at_the_client ? "at the client" : "at the server");
    std::optional<Channel>& from = at_the_client ? server_ : client_;
    std::optional<Channel>& to = at_the_client ? client_ : server_;
    RefuseEach([&] { return to->Receive(absl::Now()).status(); },
               [&](const std::optional<absl::Status>&) {
                 Must(from->Send(7, Bytes("later"), {}, Late()));
                 const absl::StatusOr<Message> message = to->Receive(Late());
                 ASSERT_TRUE(message.ok()) << message.status();
                 EXPECT_EQ(Text(message->payload), "later");
               });
  }
}

TEST_F(ChannelMemoryTest, AReceiveThatIsRefusedSomeLeavesNoHandleOpen) {
  const OsHandle memory = Own(::CreateFileMappingW(
      INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE, 0, 4096, nullptr));
  for (const bool at_the_client : {false, true}) {
    std::optional<Channel>& from = at_the_client ? server_ : client_;
    std::optional<Channel>& to = at_the_client ? client_ : server_;
    for (const bool lasts : {false, true}) {
      bool refused = true;
      for (long nth = 0; refused && !HasFailure(); ++nth) {
        SCOPED_TRACE(::testing::Message()
                     << "request " << nth << (lasts ? " and all later" : "")
                     << (at_the_client ? " at the client" : " at the server"));
        to.reset();
        from.reset();
        const testing::ExpectNoNewHandles none_stays;
        Connect();
        Must(from->Send(7, Bytes("message"), {&memory, &memory}, Late()));
        Must(from->Send(8, Bytes("later"), {}, Late()));
        absl::StatusOr<Message> message;
        refusal = {nth, lasts};
        try {
          message = to->Receive(Late());
        } catch (const std::bad_alloc&) {
        }
        refused = std::exchange(refusal, {}).happened;
        if (!message.ok() && refused) message = to->Receive(Late());
        if (message.ok()) {
          EXPECT_EQ(message->type, 7);
          EXPECT_EQ(message->handles.size(), 2u);
        } else {
          EXPECT_TRUE(refused && absl::IsUnavailable(message.status()))
              << message.status();
        }
        // What came ends first: a client waits for word of what it sent.
        to.reset();
        from.reset();
      }
    }
  }
}

TEST_F(ChannelMemoryTest, NothingArrivesOfAServersSendThatIsRefusedSome) {
  ExpectNothingOfARefusedSend(server_, client_);
}

TEST_F(ChannelMemoryTest, NothingArrivesOfAClientsSendThatIsRefusedSome) {
  ExpectNothingOfARefusedSend(client_, server_);
}

}  // namespace
}  // namespace vmm::platform
