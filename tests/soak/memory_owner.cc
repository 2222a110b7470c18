// Who has memory: a pool with several streams, memory that sleeps and wakes, and
// allocations that come and go. args: where the orders are, a directory, a name.
#include <array>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/door.h"
#include "tests/soak/part.h"
#include "tests/soak/soak.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/restorable.h"

namespace vmm::testing {
namespace {

using platform::Channel;

std::string HexOf(const PoolTicketBytes& ticket) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(ticket.data()), ticket.size()));
}

class Owner {
 public:
  Owner(const std::string& directory, const std::string& name)
      : endpoint_(
            Must(Endpoint::Start({.listener = {.directory = directory}}))),
        pool_(
            Must(Pool::Create(here_.device, {.first_segment_size = 4 * kMiB}))),
        served_(Must(endpoint_->Serve(*pool_))),
        weights_(MakeWeights()),
        door_(directory, [this](Channel visitor) { Serve(visitor); }) {
    // All of it or nothing, for those that look for it meanwhile.
    const std::string file = absl::StrCat(directory, "/", name);
    std::ofstream(file + ".new") << door_.address() << "\n"
                                 << served_.ticket() << "\n"
                                 << weights_.ticket() << "\n";
    std::filesystem::rename(file + ".new", file);
  }

  void Step() {
    const std::uint64_t what = dice_.Below(64);
    if (what == 0) {
      SleepAndWake();
    } else if (what == 1) {
      EXPECT_TRUE(pool_->Trim().ok());
      const absl::Status whole = pool_->CheckInvariants();
      EXPECT_TRUE(whole.ok()) << whole;
    } else if (own_.size() < 40 || dice_.Below(2) == 0) {
      AllocateOne();
    } else {
      FreeOne(dice_.Below(own_.size()));
    }
  }

  // Nobody else has, or asks for, anything then.
  void Rest() {
    while (!own_.empty()) FreeOne(own_.size() - 1);
    ExpectSoon([this] {
      Must(pool_->Trim());
      const PoolStatistics now = pool_->statistics();
      return now.reserved == 0 && now.live_blocks == 0 && now.held == 0 &&
             now.peers == 0;
    });
    const absl::Status whole = pool_->CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
    const absl::Status back = endpoint_->WaitUntilAllReturned(Late());
    EXPECT_TRUE(back.ok()) << back;
  }

 private:
  struct Own {
    CUdeviceptr at;
    std::uint64_t size;
    std::uint64_t seed;
    std::size_t stream;
  };

  RestorableAllocation MakeWeights() {
    Allocation memory =
        Must(Allocation::Create(here_.device, {.size = kSoakWeights}));
    WritePattern(memory.address(), kSoakWeights, kSoakWeightsSeed);
    return Must(RestorableAllocation::Share(*endpoint_, std::move(memory)));
  }

  void SleepAndWake() {
    const absl::Status released = weights_.Release(Keep::kHostMemory, Late());
    EXPECT_TRUE(released.ok()) << released;
    const absl::Status restored = weights_.Restore();
    EXPECT_TRUE(restored.ok()) << restored;
    ExpectPattern(weights_.address(), kSoakWeights, kSoakWeightsSeed);
  }

  void AllocateOne() {
    Own made{.at = 0,
             .size = std::uint64_t{256} << dice_.Below(13),  // To 1 MiB.
             .seed = dice_.Below(~std::uint64_t{0}),
             .stream = dice_.Below(streams_.size())};
    const CUstream stream = streams_[made.stream].get();
    made.at = Must(pool_->Allocate(made.size, stream));
    WritePatternOn(stream, made.at, made.size, made.seed);
    own_.push_back(made);
  }
  void FreeOne(std::size_t which) {
    const Own gone = own_[which];
    own_[which] = own_.back();
    own_.pop_back();
    ExpectPatternOn(streams_[gone.stream].get(), gone.at, gone.size, gone.seed);
    // On any stream: that of its work has been waited for.
    const CUstream stream = streams_[dice_.Below(streams_.size())].get();
    EXPECT_TRUE(pool_->Free(gone.at, stream).ok());
  }

  // One visitor, which may be killed at any moment, on a thread of its own.
  void Serve(Channel& visitor) {
    const CurrentContext current = Must(here_.context.MakeCurrent());
    const std::uint64_t seed = RandomSeed();
    Dice dice;
    for (std::uint64_t i = 0;; ++i) {
      const absl::StatusOr<std::string> asked = Listen(visitor);
      if (!asked.ok()) return;
      const bool done = *asked == "block" ? GiveBlock(visitor, seed + i, dice)
                                          : GiveMemory(visitor, seed + i);
      if (!done) return;
    }
  }
  std::uint64_t RandomSeed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return seeds_.Below(1ull << 48) << 16;
  }

  // Freed as soon as the visitor says that it has it. False: it has gone.
  bool GiveBlock(Channel& visitor, std::uint64_t seed, Dice& dice) {
    const std::uint64_t size = std::uint64_t{256}
                               << dice.Below(11);  // To 256 KiB.
    const CUstream stream = streams_[dice.Below(streams_.size())].get();
    const CUdeviceptr block = Must(pool_->Allocate(size, stream));
    WritePatternOn(stream, block, size, seed);
    const PoolTicketBytes ticket = EncodePoolTicket(Must(pool_->Export(block)));
    const bool has_it =
        Request(visitor, absl::StrCat(HexOf(ticket), " ", seed)).ok();
    const CUstream other = streams_[dice.Below(streams_.size())].get();
    EXPECT_TRUE(pool_->Free(block, other).ok());
    return has_it && Say(visitor, "freed").ok();
  }

  bool GiveMemory(Channel& visitor, std::uint64_t seed) {
    const Allocation memory =
        Must(Allocation::Create(here_.device, {.size = kSoakPiece}));
    WritePattern(memory.address(), kSoakPiece, seed);
    const Share share = Must(endpoint_->Publish(memory.shareable()));
    return Request(visitor, absl::StrCat(share.ticket(), " ", seed)).ok() &&
           Say(visitor, "freed").ok();
  }

  const Here here_;
  const std::array<Stream, 4> streams_;
  Dice dice_;  // Of the thread that steps.
  std::mutex mutex_;
  Dice seeds_;  // Guarded by mutex_.
  std::vector<Own> own_;
  const std::unique_ptr<Endpoint> endpoint_;
  const std::unique_ptr<Pool> pool_;
  const Share served_;
  RestorableAllocation weights_;
  Door door_;  // Last: its threads use the rest.
};

int Own(const std::vector<std::string>& args) {
  Owner owner(args[1], args[2]);
  Channel orders = Dial(args[0]);
  return Play(orders,
              {.step = [&] { owner.Step(); }, .rest = [&] { owner.Rest(); }});
}
const bool kOwner = RegisterChild("soak-owner", &Own);

}  // namespace
}  // namespace vmm::testing
