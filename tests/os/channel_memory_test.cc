// A channel over sockets whose process is refused memory of the host while a
// message waits: that message is the next one that comes, if any comes. And what
// other threads do for it: what was refused memory is not under way for ever.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/own_lifeline_posix.h"
#include "platform/os/close_elsewhere_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/refused_memory.h"

namespace vmm::platform {
namespace {

using testing::refusal;

class ChannelMemoryTest : public OsTest {};

TEST_F(ChannelMemoryTest, AMessageThatIsRefusedMemoryIsNotPassedOver) {
  const std::vector<std::uint8_t> payload = Bytes(std::string(100, 'x'));
  const OsHandle memory = MemoryWith("sent along");
  // Of a peer that somebody has opened it is looked whether it is the same still.
  for (const bool is_opened : {false, true}) {
    for (const bool lasts : {false, true}) {
      bool refused = true;
      for (long nth = 0; refused && !HasFailure(); ++nth) {
        SCOPED_TRACE(::testing::Message()
                     << "request " << nth << (lasts ? " and all later" : "")
                     << (is_opened ? ", of an opened peer" : ""));
        auto [from, to] = Must(Channel::Pair());
        Must(from.Send(1, Bytes("before"), {}, Late()));
        Must(to.Receive(Late()).status());
        std::optional<absl::StatusOr<Process>> peer;
        if (is_opened) peer.emplace(to.OpenPeer());
        Must(from.Send(2, payload, {&memory}, Late()));
        Must(from.Send(3, Bytes("after"), {}, Late()));

        absl::StatusOr<Message> message;
        refusal = {nth, lasts};
        try {
          message = to.Receive(Late());
        } catch (const std::bad_alloc&) {
        }
        refused = std::exchange(refusal, {}).happened;
        if (!message.ok()) message = to.Receive(Late());
        if (!message.ok()) {
          // It was lost, with the connection.
          EXPECT_TRUE(refused && is_opened) << message.status();
          EXPECT_TRUE(absl::IsUnavailable(message.status()))
              << message.status();
          continue;
        }
        EXPECT_EQ(message->type, 2);
        EXPECT_EQ(message->payload, payload);
        ASSERT_EQ(message->handles.size(), 1u);
        EXPECT_EQ(TextIn(message->handles[0]), "sent along");
        EXPECT_EQ(Must(to.Receive(Late())).type, 3);
      }
    }
  }
}

// Of the requests for memory of `call` each one is refused that it ever makes: some
// come only once in many calls, where a container grows. Then `holds` comes true.
void RefuseEachSometimes(const std::function<void()>& call,
                         const std::function<bool()>& holds) {
  constexpr int kRounds = 100;
  long refused = 0;
  for (long nth = 0; nth < 4; ++nth) {
    for (int round = 0; round < kRounds && !::testing::Test::HasFailure();
         ++round) {
      SCOPED_TRACE(::testing::Message() << "request " << nth << ", " << round);
      refusal = {nth, /*lasts=*/false};
      try {
        call();
      } catch (const std::bad_alloc&) {
      }
      if (std::exchange(refusal, {}).happened) ++refused;
      EXPECT_TRUE(ComesTrue(holds));
    }
  }
  EXPECT_GT(refused, kRounds);
}

// Or its process would be refused others for good.
TEST_F(ChannelMemoryTest,
       WhatIsRefusedMemoryToBeClosedElsewhereCountsForNobody) {
  const UserId user = CurrentUser();
  constexpr std::int64_t kProcess = 7;
  const OsHandle memory = MemoryWith("closed elsewhere");
  std::vector<OsHandle> handles;
  RefuseEachSometimes(
      [&] { CloseElsewhere(std::move(handles), user, kProcess); },
      [&] {
        if (handles.empty()) handles.push_back(Must(Duplicate(memory)));
        return NotYetClosed(user, kProcess) == 0;
      });
}

// Or its sender's end would never be proven.
TEST_F(ChannelMemoryTest, ALifelineThatWasRefusedMemoryIsAskedAgain) {
  PeerCredentials sender;
  sender.user = CurrentUser();
  sender.pid = 7;
  std::shared_ptr<const OsHandle> lifeline;
  const auto make = [&] {
    lifeline = std::make_shared<const OsHandle>(Must(TakeOwnLifeline()));
    return true;
  };
  make();
  RefuseEachSometimes(
      [&] { AskLifeline(lifeline, sender).IgnoreError(); },
      [&] { return AskLifeline(lifeline, sender).ok() && make(); });
}

}  // namespace
}  // namespace vmm::platform
