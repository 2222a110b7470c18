// Nine processes that share memory with each other in every way there is, for as
// long as VMMSHARE_SOAK_SECONDS says: some are killed and stopped meanwhile, and
// servers are flooded. In between all rest, and then nobody holds more than
// before: no descriptor, no thread, no device memory.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/hostile/recording.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/soak/part.h"
#include "tests/soak/player.h"
#include "tests/soak/soak.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"
#include "vmm/keeper/keeper.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using Life = Player::Life;

// What every process held in a rest, the most of the rests so far.
struct Peak {
  ProcessUsage of_all_rests;
  std::size_t early_resident = 0;  // In the first half of the time.
};

class Soak : public IpcTest {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
    std::filesystem::create_directory(mortal_directory());
    const std::string all = directory();
    // Whom others visit comes first.
    Add("keeper", Life::kSteady, {all});
    Add("owner", Life::kSteady, {all, "owner"});
    Add("ring-writer", Life::kSteady, {all});
    Add("owner", Life::kMortal, {mortal_directory(), "owner"});
    Add("visitor", Life::kSteady, {all});
    Add("visitor", Life::kMortal, {all});
    Add("trainer", Life::kMortal, {all});
    Add("engine", Life::kSteady, {all});
    Add("ring-reader", Life::kMortal, {all});
    for (Player& each : players_) {
      if (each.life() == Life::kSteady) each.Start();
    }
    peaks_.resize(players_.size());
    RecordHonestSessions();
    HaveASetKept();
  }

  // All work, for `time`; some are killed, stopped, and flooded.
  void Work(absl::Duration time) {
    const absl::Time end = absl::Now() + time;
    for (Player& each : players_) {
      if (each.life() == Life::kMortal) each.Start();
      each.Go();
    }
    std::vector<Child> attackers = Flood();
    while (absl::Now() < end && !HasFailure()) {
      // A pace, not a condition.
      absl::SleepFor(absl::Milliseconds(5 + dice_.Below(150)));
      Player& one = players_[dice_.Below(players_.size())];
      if (one.life() != Life::kMortal) continue;
      if (dice_.Below(4) == 0) {
        one.Pause();
        ++pauses_;
        continue;
      }
      one.Kill();
      ++kills_;
      one.Start();
      one.Go();
    }
    for (Child& each : attackers) {
      const int status = each.Wait(absl::Now() + absl::Minutes(2));
      EXPECT_TRUE(status == 0 || status == 3) << status;
    }
  }

  // Nobody has anything of anybody's any more, and is as it was at a rest before.
  void Rest(bool is_compared, bool is_late) {
    for (Player& each : players_) {
      if (each.life() == Life::kMortal) {
        each.Kill();
        ++kills_;
      }
    }
    // Who visits others before those who are visited.
    for (auto each = players_.rbegin(); each != players_.rend(); ++each) {
      if (each->life() == Life::kSteady) each->Rest();
    }
    ForgetWhatWasPut();
    for (std::size_t i = 0; i < players_.size(); ++i) {
      if (players_[i].life() == Life::kMortal) continue;
      SettlePlayer(i, is_compared, is_late);
    }
    SettleDevice(is_compared);
  }

  void EndAll() {
    for (Player& each : players_) {
      if (each.life() == Life::kSteady) each.End();
    }
  }

  std::string Summary(absl::Duration time, std::uint64_t rounds) const {
    std::string text = absl::StrFormat(
        "soak: %.0f s, %d rounds, %d kills, %d stops, %d hostile sessions",
        absl::ToDoubleSeconds(time), rounds, kills_, pauses_, hostile_);
    for (std::size_t i = 0; i < players_.size(); ++i) {
      if (players_[i].life() == Life::kMortal) continue;
      const ProcessUsage& peak = peaks_[i].of_all_rests;
      absl::StrAppendFormat(
          &text, "; %s: %d steps, %d descriptors, %d threads, %d MiB then %d",
          players_[i].part(), players_[i].steps(), peak.descriptors,
          peak.threads, peaks_[i].early_resident / kMiB,
          players_[i].Uses().resident / kMiB);
    }
    return text;
  }

 private:
  std::string mortal_directory() const { return directory() + "/mortal"; }

  void Add(const std::string& part, Life life, std::vector<std::string> args) {
    players_.emplace_back(part, life, listener(), std::move(args));
  }

  // The tickets of the owner that lives, and the address of its endpoint.
  std::vector<std::string> OwnersTickets() const {
    std::ifstream file(directory() + "/owner");
    std::vector<std::string> lines(3);
    for (std::string& line : lines) std::getline(file, line);
    return {lines[2], lines[1]};
  }

  KeeperClient Keeper() {
    return Must(KeeperClient::Connect({.address = KeeperAddressIn(directory())},
                                      Late()));
  }

  // From now on there is one, whoever is killed.
  void HaveASetKept() {
    const auto trainer =
        std::ranges::find(players_, std::string("trainer"), &Player::part);
    trainer->Start();
    trainer->Go();
    ExpectSoon([this] {
      return std::ranges::count(Must(Keeper().List(Late())).memory, kSoakSet,
                                &KeptMemory::name) == 1;
    });
    trainer->Kill();
  }

  void RecordHonestSessions() {
    const std::vector<std::string> tickets = OwnersTickets();
    AddressedTicket weights = Must(ParseTicketString(tickets[0]));
    AddressedPool pool = Must(ParsePoolString(tickets[1]));
    endpoint_ = pool.invitation.address;
    {
      Relay relay(listener_directory(), endpoint_);
      weights.invitation.address = pool.invitation.address = relay.address();
      Must(OpenTicket(driver(), FormatTicketString(weights), {}, Late()));
      Must(ImportedPool::Subscribe(driver(), FormatPoolString(pool), {},
                                   Late()));
      SaveAs("endpoint", relay.Finish());
    }
    Relay relay(listener_directory(), KeeperAddressIn(directory()));
    const Allocation memory = MakePattern(kGranule, 1);
    {
      KeeperClient keeper =
          Must(KeeperClient::Connect({.address = relay.address()}, Late()));
      Must(keeper.Put("honest", memory.shareable(), Late()));
      Must(keeper.Unlock("honest", Late()));
      Must(keeper.Lock("honest", Late()));
      Must(keeper.Seal("honest", Late()));
      Must(keeper.Attach("honest", driver(), {}, Late()));
      Must(keeper.List(Late()));
      Must(keeper.Drop("honest", Late()));
    }
    SaveAs("keeper", relay.Finish());
  }
  void SaveAs(const std::string& what, std::vector<Session> sessions) {
    std::erase_if(sessions, [](const Session& each) { return each.empty(); });
    EXPECT_FALSE(sessions.empty());
    Save(sessions, directory() + "/" + what + "-sessions");
    std::filesystem::create_directory(directory() + "/" + what + "-mount");
  }

  std::vector<Child> Flood() {
    std::vector<Child> attackers;
    const std::uint64_t sessions = HowMany("VMMSHARE_SOAK_SESSIONS", 100);
    for (const std::string what : {"endpoint", "keeper"}) {
      attackers.push_back(Child::Start(
          "hostile-peer",
          {what == "keeper" ? KeeperAddressIn(directory()) : endpoint_,
           directory() + "/" + what + "-sessions",
           absl::StrCat(dice_.Below(1u << 30)), absl::StrCat(sessions),
           directory() + "/" + what + "-mount"}));
      hostile_ += sessions;
    }
    return attackers;
  }

  // What attackers, and trainers that were killed, have had kept.
  void ForgetWhatWasPut() {
    ExpectSoon([this] {
      KeeperClient keeper = Keeper();
      const std::vector<KeptMemory> kept = Must(keeper.List(Late())).memory;
      for (const KeptMemory& each : kept) {
        if (each.name == kSoakSet || each.state == KeptState::kReserved) {
          continue;
        }
        Must(keeper.Drop(each.name, Late()));
      }
      return kept.size() == 1 && kept[0].name == kSoakSet;
    });
  }

  // The ends of others come to be known a while after they ended.
  void SettlePlayer(std::size_t which, bool is_compared, bool is_late) {
    const Player& player = players_[which];
    Peak& peak = peaks_[which];
    ProcessUsage now = player.Uses();
    if (is_compared) {
      ExpectSoon([&] {
        now = player.Uses();
        return now.descriptors <= peak.of_all_rests.descriptors &&
               now.threads <= peak.of_all_rests.threads;
      });
      EXPECT_LE(now.descriptors, peak.of_all_rests.descriptors)
          << player.part();
      EXPECT_LE(now.threads, peak.of_all_rests.threads) << player.part();
    } else {
      peak.of_all_rests.descriptors =
          std::max(peak.of_all_rests.descriptors, now.descriptors);
      peak.of_all_rests.threads =
          std::max(peak.of_all_rests.threads, now.threads);
    }
    if (!is_late) {
      peak.early_resident = std::max(peak.early_resident, now.resident);
    } else {
      EXPECT_LE(
          now.resident,
          peak.early_resident + HowMany("VMMSHARE_SOAK_GROWTH_MIB", 32) * kMiB)
          << player.part();
    }
  }

  // Of the device; the set that is kept is all there is, as before.
  void SettleDevice(bool is_compared) {
    const auto free_memory = [this] {
      std::size_t free = 0, total = 0;
      EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
      return free;
    };
    if (!is_compared) {
      least_free_ = std::min(least_free_, free_memory());
      return;
    }
    ExpectSoon([&] { return free_memory() >= least_free_; });
  }

  std::vector<Player> players_;
  std::vector<Peak> peaks_;  // As players_; of those that live.
  std::string endpoint_;
  Dice dice_;
  std::size_t least_free_ = ~std::size_t{0};
  std::uint64_t kills_ = 0;
  std::uint64_t pauses_ = 0;
  std::uint64_t hostile_ = 0;
};

TEST_F(Soak, HoldsNothingMoreAfterEachRound) {
  const absl::Duration time =
      absl::Seconds(HowMany("VMMSHARE_SOAK_SECONDS", 6));
  const absl::Duration round =
      std::clamp(time / 20, absl::Seconds(2), absl::Seconds(30));
  const absl::Time start = absl::Now();
  std::uint64_t rounds = 0;
  // The first two say what is held by those that have done everything once.
  while ((rounds < 3 || absl::Now() - start < time) && !HasFailure()) {
    Work(round);
    const bool is_late = rounds >= 2 && absl::Now() - start > time / 2;
    Rest(rounds >= 2, is_late);
    ++rounds;
    if (rounds % 10 == 0) {
      std::cout << Summary(absl::Now() - start, rounds) << std::endl;
    }
  }
  std::cout << Summary(absl::Now() - start, rounds) << "\n";
  EndAll();
}

}  // namespace
}  // namespace vmm::testing
