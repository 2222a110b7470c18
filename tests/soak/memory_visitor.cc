// Who uses the memory of owners. args: where the orders are, a directory, and
// "steady" or "mortal" for owners of which one may be killed at any moment.
#include <deque>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "platform/base/status_macros.h"
#include "tests/soak/part.h"
#include "tests/soak/soak.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/restorable.h"

namespace vmm::testing {
namespace {

using platform::Channel;

struct Given {
  std::string ticket;
  std::uint64_t seed = 0;
};

// A stay with one owner.
class Stay {
 public:
  static absl::StatusOr<std::unique_ptr<Stay>> Begin(const std::string& door,
                                                     const std::string& pool,
                                                     const std::string& weights,
                                                     Dice& dice) {
    ASSIGN_OR_RETURN(Channel owner, Channel::Connect(door, {}, Late()));
    auto stay = std::unique_ptr<Stay>(new Stay(std::move(owner), dice));
    ASSIGN_OR_RETURN(stay->pool_, ImportedPool::Subscribe(
                                      TestDriver(), pool,
                                      {.access = Access::kReadWrite}, Late()));
    ASSIGN_OR_RETURN(RestorableImport opened,
                     RestorableImport::Open(TestDriver(), weights, {}, Late()));
    stay->weights_.emplace(std::move(opened));
    stay->ExpectWeights();
    return stay;
  }
  ~Stay() {
    while (!held_.empty()) ReleaseOldest();
  }

  absl::Status Use() {
    RETURN_IF_ERROR(LetSleep());
    if (dice_.Below(8) == 0) return UseMemory();
    return UseBlock();
  }

 private:
  // A block that this process has written to: nobody else does.
  struct Held {
    ImportedBlock block;
    std::uint64_t seed;
  };

  Stay(Channel owner, Dice& dice) : owner_(std::move(owner)), dice_(dice) {}

  void ExpectWeights() {
    ExpectPattern(weights_->address(), kSoakWeights, kSoakWeightsSeed);
  }
  // Lets go of the weights while their owner wants them back.
  absl::Status LetSleep() {
    if (!weights_->lease().return_by.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(weights_->Release());
    RETURN_IF_ERROR(weights_->Restore(Late()));
    ExpectWeights();
    return absl::OkStatus();
  }

  absl::StatusOr<Given> AskFor(const std::string& what) {
    ASSIGN_OR_RETURN(const std::string text, Request(owner_, what));
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    Given given{.ticket = words.at(0)};
    EXPECT_TRUE(absl::SimpleAtoi(words.at(1), &given.seed)) << text;
    return given;
  }

  absl::Status UseBlock() {
    ASSIGN_OR_RETURN(const Given given, AskFor("block"));
    const std::string bytes = absl::HexStringToBytes(given.ticket);
    const PoolTicket ticket = Must(DecodePoolTicket(absl::MakeConstSpan(
        reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size())));
    ASSIGN_OR_RETURN(ImportedBlock block, pool_->Import(ticket, Late()));
    ExpectPattern(block.address(), block.size(), given.seed);
    const std::uint64_t mine = dice_.Below(~std::uint64_t{0});
    WritePattern(block.address(), block.size(), mine);
    held_.push_back({std::move(block), mine});
    // From here on the owner has freed it, and it is this process's alone.
    RETURN_IF_ERROR(Request(owner_, "have").status());
    while (held_.size() > dice_.Below(12)) ReleaseOldest();
    return absl::OkStatus();
  }
  void ReleaseOldest() {
    const Held& oldest = held_.front();
    ExpectPattern(oldest.block.address(), oldest.block.size(), oldest.seed);
    held_.pop_front();
  }

  absl::Status UseMemory() {
    ASSIGN_OR_RETURN(const Given given, AskFor("memory"));
    ASSIGN_OR_RETURN(const ImportedAllocation memory,
                     OpenTicket(TestDriver(), given.ticket, {}, Late()));
    RETURN_IF_ERROR(Request(owner_, "have").status());
    // Its owner has given it up by now.
    ExpectPattern(memory.address(), kSoakPiece, given.seed);
    return absl::OkStatus();
  }

  Channel owner_;
  Dice& dice_;
  std::unique_ptr<ImportedPool> pool_;
  std::optional<RestorableImport> weights_;
  std::deque<Held> held_;
};

class Visitor {
 public:
  explicit Visitor(std::string directory) : directory_(std::move(directory)) {}

  void Step() {
    if (stay_ == nullptr) {
      Begin();
      return;
    }
    Judge(stay_->Use());
    if (dice_.Below(40) == 0) stay_ = nullptr;
  }
  void Rest() { stay_ = nullptr; }

 private:
  void Begin() {
    mortal_ = dice_.Below(2) == 0;
    std::ifstream file(directory_ + (mortal_ ? "/mortal/owner" : "/owner"));
    std::string door, pool, weights;
    if (!std::getline(file, door) || !std::getline(file, pool) ||
        !std::getline(file, weights)) {
      EXPECT_TRUE(mortal_) << "the owner has not said where it is";
      return;
    }
    absl::StatusOr<std::unique_ptr<Stay>> stay =
        Stay::Begin(door, pool, weights, dice_);
    Judge(stay.status());
    if (stay.ok()) stay_ = *std::move(stay);
  }
  // An owner that lives serves all, but for those who come in a crowd.
  void Judge(const absl::Status& status) {
    if (status.ok()) return;
    stay_ = nullptr;
    const bool gone = absl::IsUnavailable(status) || absl::IsNotFound(status);
    EXPECT_TRUE(absl::IsResourceExhausted(status) || (mortal_ && gone))
        << status;
  }

  const std::string directory_;
  Dice dice_;
  bool mortal_ = false;
  std::unique_ptr<Stay> stay_;
};

int Visit(const std::vector<std::string>& args) {
  const Here here;
  Visitor visitor(args[1]);
  Channel orders = Dial(args[0]);
  return Play(orders, {.step = [&] { visitor.Step(); },
                       .rest = [&] { visitor.Rest(); }});
}
const bool kVisitor = RegisterChild("soak-visitor", &Visit);

}  // namespace
}  // namespace vmm::testing
