// Runs of a scene in which one of the two processes is ended or stopped.
#ifndef VMMSHARE_TESTS_KILL_RUN_H_
#define VMMSHARE_TESTS_KILL_RUN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/loaded_kernel.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/party.h"
#include "tests/kill/scenes.h"
#include "tests/support/steps.h"

namespace vmm::testing {

enum class Side { kOwner, kImporter };

struct Case {
  const Scene* scene;
  Side victim;
};
// Found by GoogleTest.
inline void PrintTo(const Case& which, std::ostream* out) {
  *out << which.scene->name;
}
// "PoolFreedImporter".
std::string NameOf(const Case& which);
// Every scene, with either side as the victim.
std::vector<Case> AllCases();

// Which of a run's steps, by number: all, but of one call that is made over and
// over, as when a connection is emptied, the first two and the last; and of none
// that changes the thread's own mode beside captures, which nobody else sees.
std::vector<std::uint64_t> StepsToTry(const std::vector<std::string>& names);

// One run: the victim is a child process, the survivor this one.
struct Played {
  absl::Status survivor;
  int victim = 0;  // Its exit status: Child::kKilled, or 0 if it came through.
  Measured measured;
  bool met_while_stopped = false;  // A deadline, while the victim stood still.
  std::set<std::string> left;      // Files in the directory for channels.
};

// Of many runs of a case.
struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t points = 0;  // Tried.
  std::uint64_t runs = 0;
  std::uint64_t too_late = 0;  // The victim had come through before.
  std::map<std::string, std::uint64_t> outcomes;  // The survivor's, by code.
  std::uint64_t met_while_stopped = 0;
  std::uint64_t sockets = 0;  // That dead victims left behind.
  std::uint64_t pairs = 0;    // New ones that shared afterwards.
  Measured measured;

  void Add(const Played& run, const StepTrap& trap);
  // One line for people and for docs/lifetime.md.
  void Print(const char* what, const Case& which) const;
};

// Some scenes have checksums taken.
class MatrixTest : LoadedKernel, public IpcTest {
 protected:
  // The names of the victim's steps when nothing happens to it.
  std::vector<std::string> CountSteps(const Case& which);
  // The scene with `trap` for the victim. Everything is given back afterwards:
  // checked.
  Played RunOnce(const Case& which, const StepTrap& trap,
                 absl::Duration patience);
  // Whether two new processes play the scene to its end.
  bool NewPairShares(const Case& which);

 private:
  Played Play(const Case& which, const StepTrap& trap, absl::Duration patience,
              const std::string& report);
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_KILL_RUN_H_
