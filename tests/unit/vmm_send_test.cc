// SendAll() against a receiver that does what it likes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/support/emulator.h"
#include "tests/support/open_handles.h"
#include "tests/unit/vmm_protocol_samples.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::protocol {
namespace {

using testing::AnyHandles;
using testing::CountPayload;
using testing::ErrorPayload;
using ::testing::HasSubstr;
using testing::Late;
using testing::Must;
using testing::RawPeer;
using testing::TicketOfChunks;
using Bytes = std::vector<std::uint8_t>;

class SendAllTest : public testing::HandlesCheckedTest {
 protected:
  Outgoing Memory(std::size_t chunks, std::size_t fails_at = ~std::size_t{0}) {
    return {
        TicketOfChunks(chunks),
        [this, fails_at](std::size_t chunk) -> absl::StatusOr<ExportedHandle> {
          if (chunk == fails_at) {
            return absl::PermissionDeniedError("export denied");
          }
          most_open_ = std::max(most_open_, testing::OpenHandles().size());
          return std::move(AnyHandles(1).front());
        }};
  }
  static Outgoing FabricMemory(std::size_t chunks) {
    return {TicketOfChunks(chunks, HandleKind::kFabric),
            [](std::size_t chunk) -> absl::StatusOr<ExportedHandle> {
              fabric::Handle handle;
              handle.bytes.fill(static_cast<std::uint8_t>(chunk));
              return handle;
            }};
  }

  absl::Status Send(const std::vector<Outgoing>& memory,
                    absl::Time deadline = Late(),
                    const platform::CancelEvent* cancel = nullptr) {
    return SendAll(sender_, memory, deadline, cancel);
  }

  // Answers before it was asked, which is as good as after.
  void AnswerDone(std::uint32_t count) {
    receiver_.Send(kDone, CountPayload(count));
  }

  void ExpectInStep() {
    ASSERT_TRUE(sender_.is_open());
    AnswerDone(1);
    EXPECT_TRUE(Send({Memory(1)}).ok());
  }

  std::pair<platform::Channel, platform::Channel> ends_ =
      Must(platform::Channel::Pair());
  platform::Channel sender_ = std::move(ends_.first);
  RawPeer receiver_{std::move(ends_.second)};
  std::size_t most_open_ = 0;
};

TEST_F(SendAllTest, SendsABeginAndOnePartForOneAllocation) {
  AnswerDone(1);
  EXPECT_TRUE(Send({Memory(1)}).ok());
  const platform::Message begin = Must(receiver_.Receive());
  EXPECT_EQ(begin.type, kBegin);
  EXPECT_EQ(begin.payload, CountPayload(1));
  const platform::Message part = Must(receiver_.Receive());
  EXPECT_EQ(part.type, kPart);
  EXPECT_EQ(part.payload, testing::PartPayload({{TicketOfChunks(1)}}));
  EXPECT_EQ(part.handles.size(), 1u);
  EXPECT_TRUE(receiver_.HearsNothing());
}

TEST_F(SendAllTest, PutsSixteenHandlesIntoAMessageAndNoMore) {
  AnswerDone(3);
  std::thread sender([this] {
    EXPECT_TRUE(Send({Memory(20), Memory(1), Memory(12)}).ok());
  });
  EXPECT_EQ(Must(receiver_.Receive()).type, kBegin);
  std::vector<std::size_t> handles;
  std::vector<int> tickets;
  for (int i = 0; i < 3; ++i) {
    const platform::Message part = Must(receiver_.Receive());
    handles.push_back(part.handles.size());
    tickets.push_back(part.payload[0]);
  }
  sender.join();
  EXPECT_THAT(handles, ::testing::ElementsAre(16, 16, 1));
  EXPECT_THAT(tickets, ::testing::ElementsAre(1, 2, 0));
  EXPECT_TRUE(receiver_.HearsNothing());
}

TEST_F(SendAllTest, SendsFabricHandlesAsBytes) {
  AnswerDone(1);
  EXPECT_TRUE(Send({FabricMemory(2)}).ok());
  EXPECT_EQ(Must(receiver_.Receive()).type, kBegin);
  const platform::Message part = Must(receiver_.Receive());
  EXPECT_TRUE(part.handles.empty());
  EXPECT_EQ(part.payload.size(), 4u + kTicketBytes + 2 * 64);
  EXPECT_EQ(part.payload.back(), 1);
}

// Bytes stand behind descriptors in a part, whichever ticket they are of.
TEST_F(SendAllTest, PutsHandlesOfOneKindIntoAPart) {
  AnswerDone(4);
  std::thread sender([this] {
    EXPECT_TRUE(
        Send({FabricMemory(1), Memory(1), Memory(1), FabricMemory(1)}).ok());
  });
  EXPECT_EQ(Must(receiver_.Receive()).type, kBegin);
  std::vector<std::pair<int, std::size_t>> parts;  // Tickets, descriptors.
  for (int i = 0; i < 3; ++i) {
    const platform::Message part = Must(receiver_.Receive());
    parts.emplace_back(part.payload[0], part.handles.size());
  }
  sender.join();
  EXPECT_THAT(parts, ::testing::ElementsAre(std::pair(1, 0u), std::pair(2, 2u),
                                            std::pair(1, 0u)));
  EXPECT_TRUE(receiver_.HearsNothing());
}

TEST_F(SendAllTest, OpensOneMessagesHandlesAtATime) {
  const std::size_t before = testing::OpenHandles().size();
  std::thread reader([this] {
    bool last = false;
    while (!last) {
      // Closed before the next is received: else it would hold two.
      const platform::Message message = Must(receiver_.Receive());
      last = message.type != kBegin && message.handles.size() != 16;
    }
    AnswerDone(1);
  });
  EXPECT_TRUE(Send({Memory(16 * 6 + 1)}).ok());
  reader.join();
  // Sixteen of the message, sixteen that the reader may have open, and the
  // one being made with its event.
  EXPECT_LE(most_open_, before + 16 + 16 + 4);
}

TEST_F(SendAllTest, AnExportThatFailsIsToldAndLeavesTheChannelInStep) {
  for (std::size_t fails_at : {0, 3, 17}) {
    absl::Status status;
    std::thread sender([&] {
      status = Send({Memory(1), Memory(20, fails_at)});
    });
    platform::Message message;
    do {
      message = Must(receiver_.Receive());
    } while (message.type == kBegin || message.type == kPart);
    sender.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(status.message(), "export denied");
    EXPECT_EQ(message.type, kAbort);
    EXPECT_EQ(DecodeError(message.payload, "the owner").message(),
              "the owner refused: export denied");
    ExpectInStep();
    while (!receiver_.HearsNothing()) {
    }
  }
}

TEST_F(SendAllTest, ARefusalComesBackWithItsCode) {
  receiver_.Send(kRefused, ErrorPayload(9, "no such device"));
  const absl::Status status = Send({Memory(1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "the importer refused: no such device");
  ExpectInStep();
}

TEST_F(SendAllTest, AnAnswerThatMakesNoSenseClosesTheChannel) {
  struct Answer {
    std::uint16_t type;
    Bytes payload;
    std::size_t handles;
  };
  for (const Answer& answer :
       {Answer{kDone, CountPayload(0), 0}, Answer{kDone, CountPayload(2), 0},
        Answer{kDone, CountPayload(0xffffffff), 0}, Answer{kDone, {}, 0},
        Answer{kDone, {1, 0, 0}, 0}, Answer{kDone, {1, 0, 0, 0, 0}, 0},
        Answer{kDone, CountPayload(1), 1},
        Answer{kAbort, ErrorPayload(5, "x"), 0},
        Answer{kBegin, CountPayload(1), 0}, Answer{kPart, {}, 0},
        Answer{kOpen, Bytes(28, 0), 0}, Answer{0, CountPayload(1), 0},
        Answer{0xffff, {}, 16}}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_ = std::move(a);
    receiver_.channel() = std::move(b);
    receiver_.Send(answer.type, answer.payload, answer.handles);
    const absl::Status status = Send({Memory(1)});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << answer.type;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("where its word on 1 allocations was expected"));
    EXPECT_FALSE(sender_.is_open());
    EXPECT_TRUE(receiver_.HearsHangUp());
  }
}

TEST_F(SendAllTest, ARefusalThatCannotBeReadIsDataLoss) {
  receiver_.Send(kRefused, {1, 2});
  EXPECT_TRUE(absl::IsDataLoss(Send({Memory(1)})));
}

TEST_F(SendAllTest, AReceiverThatNeverAnswersCostsTheDeadlineAndTheChannel) {
  const absl::Status status =
      Send({Memory(1)}, absl::Now() + absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(sender_.is_open());
}

TEST_F(SendAllTest, AReceiverThatNeverReadsCostsTheDeadlineAndTheChannel) {
  std::vector<Outgoing> much;
  for (int i = 0; i < 5000; ++i) much.push_back(FabricMemory(16));
  const absl::Status status = Send(much, absl::Now() + absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(sender_.is_open());
}

// Whatever it says: it is the system that knows what was received.
TEST_F(SendAllTest, AReceiverThatNeverReadsHoldsUpNoMoreHandlesThanOnePart) {
  if (!platform::kNativeHandleIsPosixFd) {
    GTEST_SKIP() << "this system does not limit handles that are on their way";
  }
  if (testing::IsEmulated()) {
    GTEST_SKIP() << "qemu-user: knows no SO_MEMINFO, as Linux before 4.12";
  }
  AnswerDone(1);
  std::size_t made = 0;
  bool gave = false;
  const Outgoing memory = {
      TicketOfChunks(40), [&made](std::size_t) {
        ++made;
        return absl::StatusOr<ExportedHandle>(std::move(AnyHandles(1).front()));
      }};
  const absl::Status status = SendAll(
      sender_, {memory}, absl::Now() + absl::Milliseconds(50), nullptr, &gave);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(made, platform::kMaxHandles);
  EXPECT_FALSE(sender_.is_open());
  EXPECT_TRUE(gave);
}

TEST_F(SendAllTest, WhoGotSomethingAndHasNotRefusedMayHaveIt) {
  const auto may_have = [this](std::size_t fails_at) {
    bool gave = false;
    const absl::Status sent = SendAll(
        sender_, {Memory(1), Memory(20, fails_at)}, Late(), nullptr, &gave);
    EXPECT_FALSE(sent.ok());
    return gave;
  };
  EXPECT_FALSE(may_have(0));
  std::thread reader([this] {
    while (Must(receiver_.Receive()).type != kAbort) {
    }
    while (Must(receiver_.Receive()).type != kAbort) {
    }
  });
  EXPECT_TRUE(may_have(17));
  reader.join();
  receiver_.Send(kRefused, ErrorPayload(9, "no"));
  bool gave = true;
  EXPECT_FALSE(SendAll(sender_, {Memory(1)}, Late(), nullptr, &gave).ok());
  EXPECT_FALSE(gave);
}

TEST_F(SendAllTest, AReceiverThatHangsUpIsTold) {
  receiver_.channel().Close();
  EXPECT_TRUE(absl::IsUnavailable(Send({Memory(1)})));
  EXPECT_TRUE(absl::IsUnavailable(sender_.Receive(Late()).status()));
}

TEST_F(SendAllTest, AReceiverThatHangsUpInPlaceOfItsAnswerIsTold) {
  std::thread reader([this] {
    Must(receiver_.Receive());
    Must(receiver_.Receive());
    receiver_.channel().Close();
  });
  EXPECT_TRUE(absl::IsUnavailable(Send({Memory(1)})));
  reader.join();
}

TEST_F(SendAllTest, ACancelledWaitClosesTheChannel) {
  const platform::CancelEvent cancel = Must(platform::CancelEvent::Create());
  cancel.Notify();
  EXPECT_TRUE(absl::IsCancelled(Send({Memory(1)}, Late(), &cancel)));
  EXPECT_FALSE(sender_.is_open());
}

TEST(Pitfall28, AnExporterThatFailsTellsTheImporterInsteadOfLeavingItWaiting) {
  auto [owner, importer] = Must(platform::Channel::Pair());
  const Outgoing failing = {
      TicketOfChunks(1), [](std::size_t) -> absl::StatusOr<ExportedHandle> {
        return absl::ResourceExhaustedError("out of descriptors");
      }};
  EXPECT_FALSE(SendAll(owner, {failing}, Late()).ok());
  const absl::Time begun = absl::Now();
  const auto received = ReceiveAll(
      importer, [](Incoming) { return absl::OkStatus(); }, Late());
  EXPECT_EQ(received.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(received.status().message(),
            "the owner refused: out of descriptors");
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

}  // namespace
}  // namespace vmm::protocol
