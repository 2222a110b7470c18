// Handshakes in which a rank is killed (SIGKILL), or sometimes only stopped
// (SIGSTOP), at any step and any time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/job/rank_process.h"
#include "tests/support/emulator.h"
#include "tests/support/host_instance.h"
#include "tests/support/how_many.h"
#include "tests/support/test_driver.h"

#ifndef VMMSHARE_JOB_KILLS
#define VMMSHARE_JOB_KILLS 1000
#endif

namespace vmm::testing {
namespace {

constexpr int kRanks = 4;
// Two rounds: put, fence and three gets, each with a step before and some
// after.
constexpr int kSteps = 16;
constexpr absl::Duration kTime = absl::Milliseconds(1500);
// How late a rank may be. A sanitizer's takes seconds of a busy machine to free
// what it has; the test is here for its findings, and for ranks that hang.
constexpr bool kSanitized = VMMSHARE_JOB_KILLS < 1000;
constexpr absl::Duration kGrace = absl::Seconds(kSanitized ? 20 : 1);
// What a handshake takes when nobody dies, on a busy machine.
constexpr absl::Duration kUsual = absl::Milliseconds(100);

struct Job {
  std::vector<RankTask> tasks;
  std::vector<Child> children;
  // One, or two: all of a node that goes down.
  std::vector<int> victims;
  bool Has(int rank) const {
    return std::find(victims.begin(), victims.end(), rank) != victims.end();
  }
};

struct Tally {
  int early = 0;  // The others were told of a missing card.
  int late = 0;   // ... of a missing row.
  int ended = 0;  // ... that all is well: it died afterwards.
  int slow = 0;   // ... of another rank, which was too slow.
  absl::Duration worst = -absl::InfiniteDuration();
};

// The ranks that `message` says are missing.
std::vector<int> Named(const std::string& message) {
  std::vector<int> ranks;
  std::smatch list;
  if (!std::regex_search(message, list,
                         std::regex("from ranks? ([0-9, ]+):"))) {
    return ranks;
  }
  for (const auto piece : absl::StrSplit(list[1].str(), ", ")) {
    int rank = 0;
    EXPECT_TRUE(absl::SimpleAtoi(piece, &rank)) << message;
    ranks.push_back(rank);
  }
  return ranks;
}

// Whether `report` names a victim, or else a rank that on a busy machine had
// not spoken when the round ended for this one.
bool NamesTheRightOne(const Job& job, const RankReport& report, Tally* tally) {
  const std::size_t round =
      report.message.find("card") != std::string::npos ? 0 : 1;
  const absl::Time end = report.began + kTime * (round == 0 ? 0.45 : 0.85);
  bool slow = false;
  for (int rank : Named(report.message)) {
    if (job.Has(rank)) return true;
    const RankReport other = ReadReport(job.tasks[rank]);
    slow |= other.puts.size() <= round || other.puts[round] >= end;
  }
  tally->slow += slow ? 1 : 0;
  return slow;
}

void Judge(const Job& job, Tally* tally) {
  for (const RankTask& task : job.tasks) {
    const RankReport report = ReadReport(task);
    if (job.Has(task.rank)) continue;
    const RankTask& victim = job.tasks[job.victims.front()];
    const std::string what = absl::StrCat(
        "rank ", task.rank, ", of ", job.victims.size(), " victims the first ",
        victim.rank, victim.only_stop ? " stopped" : " killed", " at step ",
        victim.kill_at_step, " or after ",
        absl::FormatDuration(victim.kill_after), ": ", report.code, " ",
        report.message);
    ASSERT_TRUE(report.there) << what;
    EXPECT_LE(report.after_deadline, kGrace) << what;
    tally->worst = std::max(tally->worst, report.after_deadline);
    if (report.code == "OK") {
      ++tally->ended;
      continue;
    }
    EXPECT_EQ(report.code, "DEADLINE_EXCEEDED") << what;
    EXPECT_TRUE(NamesTheRightOne(job, report, tally)) << what;
    ++(report.message.find("card") != std::string::npos ? tally->early
                                                        : tally->late);
  }
}

// A rank, or a node with its two.
TEST(KilledRank, IsNamedToTheOthersByTheDeadline) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a GPU takes too long to start";
  if (IsEmulated()) GTEST_SKIP() << "an emulator takes too long to start";
  const std::uint64_t count = HowMany("VMMSHARE_JOB_KILLS", VMMSHARE_JOB_KILLS);
  // Of 96 processes on two cores some answer late because they do not run: what
  // is late should be the handshake. A sanitizer's are slower still.
  const std::uint64_t at_once = kSanitized ? 4 : 12;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/vmmshare-",
                                          HostInstanceName("kills"));
  std::mt19937 random(20261121);
  const auto below = [&random](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  UseAHostInstanceOfOwn();
  Tally tally;
  int nodes = 0;
  for (std::uint64_t done = 0; done < count; done += at_once) {
    std::vector<Job> jobs(std::min(at_once, count - done));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Job& job = jobs[i];
      const int first = below(kRanks);
      const bool is_node = below(2) == 0;
      job.victims = {first};
      if (is_node) job.victims = {first / 2 * 2, first / 2 * 2 + 1};
      nodes += is_node ? 1 : 0;
      const absl::Duration moment = kUsual * below(1000) / 1000;
      for (int rank = 0; rank < kRanks; ++rank) {
        RankTask task;
        task.folder = absl::StrCat(folder, "/", i);
        task.rank = rank;
        task.ranks = kRanks;
        task.time = kTime;
        // Stopped only between driver calls: the host-memory driver's locks are
        // held by processes, a GPU's by the kernel.
        if (rank == first && !is_node && below(2) == 0) {
          task.kill_at_step = below(kSteps);
          task.only_stop = below(3) == 0;
        } else if (job.Has(rank)) {
          task.kill_after = moment;
        }
        job.tasks.push_back(task);
      }
      std::filesystem::create_directories(job.tasks[0].folder);
      for (const RankTask& task : job.tasks) {
        job.children.push_back(StartRank(task));
      }
    }
    for (Job& job : jobs) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (job.Has(rank)) continue;
        EXPECT_EQ(job.children[static_cast<std::size_t>(rank)].Wait(), 0);
      }
      for (int rank : job.victims) {
        Child& victim = job.children[static_cast<std::size_t>(rank)];
        victim.Kill();  // It may have been stopped only, or be done.
        victim.Wait();
      }
      Judge(job, &tally);
    }
    std::filesystem::remove_all(folder);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "handshakes with a killed rank: %llu, of them %d with a node of two; "
      "others told of a missing card %d, "
      "of a missing row %d, of no trouble %d, of a slow rank %d; the latest %s "
      "after its "
      "deadline\n",
      static_cast<unsigned long long>(count), nodes, tally.early, tally.late,
      tally.ended, tally.slow, absl::FormatDuration(tally.worst).c_str());
  EXPECT_GT(tally.early, 0);
  EXPECT_GT(tally.late, 0);
}

}  // namespace
}  // namespace vmm::testing
