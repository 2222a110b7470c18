// Ranks that are processes of their own, and exchange through files of one
// folder: nothing tells a rank that another has died.
#ifndef VMMSHARE_TESTS_JOB_RANK_PROCESS_H_
#define VMMSHARE_TESTS_JOB_RANK_PROCESS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/child.h"

namespace vmm::testing {

// What a rank does. Becomes the words of a child's command line.
struct RankTask {
  std::string folder;  // Of the exchange; new for each job.
  int rank = 0;
  int ranks = 1;
  absl::Duration time = absl::Seconds(30);  // Until the deadline.
  bool symmetric = false;                   // Else a handshake.
  // A node that it enters first (nodes.h), and in whose IMEX root the reasons
  // are looked for; "" for neither.
  std::string node;
  std::string root;
  bool obey_permissions = false;
  int beside = -1;  // A rank that it starts too, on the same node.
  // It kills itself: at this step of its exchange, counted from 0 (-1: not),
  // or once this time has passed.
  int kill_at_step = -1;
  absl::Duration kill_after = absl::InfiniteDuration();
  bool only_stop = false;  // SIGSTOP: it lives on and does nothing more.
  // What is wrong with it: "" nothing, "version", "size", "random-handle",
  // "stale-handle", "no-nvml".
  std::string fault;
};

Child StartRank(const RankTask& task,
                const std::map<std::string, std::string>& env = {});

// What it was told.
struct RankReport {
  bool there = false;             // It ended by itself.
  absl::Duration after_deadline;  // Negative: before.
  absl::Time began;
  std::vector<absl::Time> puts;  // When it had put its card, its row.
  std::string code;              // "OK", "DEADLINE_EXCEEDED", ...
  std::string message;
  // Of a handshake: "fd", or why not ("other-host,no-channel"), or "?".
  std::map<std::pair<int, int>, std::string> cells;
  std::map<std::pair<int, int>, std::string> why;  // The text of those.
};
// REQUIRES: the child has ended.
RankReport ReadReport(const RankTask& task);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_JOB_RANK_PROCESS_H_
