#include "tests/ipc/pool_peer.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "platform/base/check.h"
#include "vmm/pool/imported_pool.h"

namespace vmm::testing {
namespace {

constexpr std::uint16_t kTickets = 4;  // A message of tickets only.
constexpr std::size_t kTicketsAtOnce = platform::kMaxPayload / kPoolTicketBytes;

// The child's side.
class Subscriber {
 public:
  explicit Subscriber(platform::Channel channel)
      : channel_(std::move(channel)) {}

  int Serve() {
    for (;;) {
      absl::StatusOr<platform::Message> message =
          channel_.Receive(absl::InfiniteFuture());
      if (!message.ok()) {
        return absl::IsUnavailable(message.status()) ? 0 : 3;
      }
      if (message->type == kTickets) {
        TakeTickets(message->payload);
      } else {
        Tell(channel_, Do({message->payload.begin(), message->payload.end()}),
             kText);
      }
    }
  }

 private:
  void TakeTickets(const std::vector<std::uint8_t>& bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += kPoolTicketBytes) {
      tickets_.push_back(Must(DecodePoolTicket(
          absl::MakeConstSpan(bytes).subspan(at, kPoolTicketBytes))));
    }
  }

  std::string Do(const std::string& command) {
    std::istringstream words(command);
    std::string what;
    words >> what;
    if (what == "subscribe") return Subscribe(words);
    if (what == "import") return Import();
    if (what == "churn") Churn();
    if (what == "refuse") return Refuse();
    if (what == "race") return Race();
    if (what == "release") {
      blocks_.clear();
      return "OK";
    }
    if (what == "unsubscribe") {
      blocks_.clear();
      pool_.reset();
      return "OK";
    }
    if (what == "connection") return pool_->connection().ToString();
    if (what == "weakness") return pool_->weakness();
    if (what == "segments") return absl::StrCat(pool_->statistics().segments);
    std::size_t first = 0;
    std::size_t count = 1;
    std::uint64_t seed = 0;
    words >> first >> count >> seed;
    platform::Check(first + count <= blocks_.size(), "no such block");
    for (std::size_t i = 0; i < count; ++i) {
      const ImportedBlock& block = blocks_[first + i];
      if (what == "expect") {
        ExpectPattern(block.address(), block.size(), seed + i);
      } else if (what == "write") {
        WritePattern(block.address(), block.size(), seed + i);
      } else if (what == "zeros") {
        ExpectZeros(block);
      } else if (what == "read-only") {
        ExpectReadOnly(block.address());
      } else {
        platform::Die(absl::StrCat("a peer was told: ", command));
      }
    }
    return ::testing::Test::HasFailure() ? "not as expected" : "OK";
  }

  std::string Subscribe(std::istringstream& words) {
    std::string ticket;
    words >> ticket;
    ImportOptions options;
    if (IsTestOfLegacyIpc()) options.access = Access::kReadWrite;
    for (std::string word; words >> word;) {
      if (word == "rw") options.access = Access::kReadWrite;
      if (word == "here") {
        options.grants = {{Location::On(here_.device), Access::kReadWrite}};
      }
    }
    absl::StatusOr<std::unique_ptr<ImportedPool>> pool =
        ImportedPool::Subscribe(TestDriver(), ticket, options, Late());
    if (!pool.ok()) return pool.status().ToString();
    pool_ = *std::move(pool);
    return "OK";
  }

  std::string Import() {
    absl::StatusOr<std::vector<ImportedBlock>> blocks =
        pool_->ImportAll(std::exchange(tickets_, {}), Late());
    if (!blocks.ok()) return blocks.status().ToString();
    std::move(blocks->begin(), blocks->end(), std::back_inserter(blocks_));
    return "OK";
  }

  static void ExpectZeros(const ImportedBlock& block) {
    std::vector<std::uint8_t> bytes(block.size(), 1);
    EXPECT_EQ(
        TestDriver()->cuMemcpyDtoH(bytes.data(), block.address(), bytes.size()),
        CUDA_SUCCESS);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                            [](std::uint8_t byte) { return byte == 0; }));
  }

  std::string Refuse() {
    for (const PoolTicket& ticket : std::exchange(tickets_, {})) {
      const absl::Status status = pool_->Import(ticket, Late()).status();
      if (!absl::IsFailedPrecondition(status)) {
        return absl::StrCat(ticket.Describe(), ": ", status.ToString());
      }
    }
    return "OK";
  }

  static bool StartsWithItsGeneration(const ImportedBlock& block,
                                      const PoolTicket& ticket) {
    std::uint64_t word = 0;
    return TestDriver()->cuMemcpyDtoH(&word, block.address(), sizeof word) ==
               CUDA_SUCCESS &&
           word == ticket.generation;
  }

  std::string Race() {
    std::uint64_t imported = 0;
    std::uint64_t refused = 0;
    std::uint64_t batches = 0;
    for (;;) {
      const platform::Message message = Must(channel_.Receive(Late()));
      if (message.type != kTickets) return absl::StrCat(imported, " ", refused);
      TakeTickets(message.payload);
      for (const PoolTicket& ticket : std::exchange(tickets_, {})) {
        absl::StatusOr<ImportedBlock> block = pool_->Import(ticket, Late());
        if (absl::IsFailedPrecondition(block.status())) {
          ++refused;
          continue;
        }
        if (!block.ok()) return block.status().ToString();
        if (!StartsWithItsGeneration(*block, ticket)) {
          return absl::StrCat("another's data in the ", ticket.Describe());
        }
        if (++imported % 2 == 0 && blocks_.size() < 128) {
          held_.push_back(ticket);
          blocks_.push_back(*std::move(block));
        }
      }
      // Some are kept for a while, freed by their owner long since.
      for (std::size_t i = 0; i < held_.size(); ++i) {
        if (!StartsWithItsGeneration(blocks_[i], held_[i])) {
          return absl::StrCat("held: another's data in the ",
                              held_[i].Describe());
        }
      }
      if (++batches % 4 == 0) {
        held_.clear();
        blocks_.clear();
      }
      Tell(channel_);
    }
  }

  [[noreturn]] void Churn() {
    Tell(channel_, "OK", kText);
    for (;;) {
      std::vector<ImportedBlock> blocks;
      for (const PoolTicket& ticket : tickets_) {
        // Some are freed by now.
        absl::StatusOr<ImportedBlock> block = pool_->Import(ticket, Late());
        if (block.ok()) blocks.push_back(*std::move(block));
      }
    }
  }

  const Here here_;
  platform::Channel channel_;
  std::unique_ptr<ImportedPool> pool_;
  std::vector<PoolTicket> tickets_;
  std::vector<PoolTicket> held_;       // Of blocks_, in a race.
  std::vector<ImportedBlock> blocks_;  // Gone before the pool.
};

int PoolPeerMain(const std::vector<std::string>& args) {
  return Subscriber(Dial(args[0])).Serve();
}
const bool kPoolPeer = RegisterChild("pool-peer", &PoolPeerMain);

}  // namespace

PoolPeer PoolPeer::Start(platform::Listener& listener,
                         const std::map<std::string, std::string>& env) {
  Child child = Child::Start("pool-peer", {listener.address()}, env);
  return PoolPeer(std::move(child), Must(listener.Accept(Late())));
}

std::string PoolPeer::Ask(const std::string& command) {
  Tell(channel_, command, kText);
  return Hear(channel_);
}

void PoolPeer::SendTickets(absl::Span<const PoolTicket> tickets) {
  while (!tickets.empty()) {
    const absl::Span<const PoolTicket> part =
        tickets.subspan(0, kTicketsAtOnce);
    std::vector<std::uint8_t> bytes;
    for (const PoolTicket& ticket : part) {
      const PoolTicketBytes one = EncodePoolTicket(ticket);
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    Must(channel_.Send(kTickets, bytes, {}, Late()));
    tickets.remove_prefix(part.size());
  }
}

std::string PoolPeer::Import(absl::Span<const PoolTicket> tickets) {
  SendTickets(tickets);
  return Ask("import");
}

std::string PoolPeer::Refuse(absl::Span<const PoolTicket> tickets) {
  SendTickets(tickets);
  return Ask("refuse");
}

PoolPeer::Raced PoolPeer::EndRace() {
  Raced raced;
  const std::string answer = Ask("stop");
  std::istringstream(answer) >> raced.imported >> raced.refused;
  EXPECT_GT(raced.imported + raced.refused, 0u) << answer;
  return raced;
}

void PoolPeer::Churn(absl::Span<const PoolTicket> tickets) {
  SendTickets(tickets);
  EXPECT_EQ(Ask("churn"), "OK");
}

std::size_t PoolPeer::Segments() {
  std::size_t segments = 0;
  EXPECT_TRUE(absl::SimpleAtoi(Ask("segments"), &segments));
  return segments;
}

}  // namespace vmm::testing
