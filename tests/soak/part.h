// A part of the soak: a process that works while it is told to, and gives back
// all that it has when it is told to rest.
#ifndef VMMSHARE_TESTS_SOAK_PART_H_
#define VMMSHARE_TESTS_SOAK_PART_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "tests/ipc/vmm_ipc_test.h"

namespace vmm::testing {

struct Part {
  // One piece of work, of a second at most. Null: others come and are served.
  std::function<void()> step = nullptr;
  std::function<void()> rest = [] {};
};

// Plays it as `orders` says, until that hangs up or an expectation has failed.
// Returns the exit status for the process.
int Play(platform::Channel& orders, const Part& part);

// Whether something that EXPECT_ expects has failed in this process.
bool HasFailed();

// Says something to another part and hears its answer. UNAVAILABLE when it has
// ended.
absl::StatusOr<std::string> Request(platform::Channel& other,
                                    const std::string& text);
absl::Status Say(platform::Channel& other, const std::string& text);
absl::StatusOr<std::string> Listen(platform::Channel& other);

class Dice {
 public:
  Dice();
  std::uint64_t Below(std::uint64_t end) { return engine_() % end; }

 private:
  std::mt19937_64 engine_;  // Seeded by VMMSHARE_SEED and the process.
};

// Patterns in the order of `stream`; each returns when it is done.
void WritePatternOn(CUstream stream, CUdeviceptr at, std::size_t size,
                    std::uint64_t seed);
void ExpectPatternOn(CUstream stream, CUdeviceptr at, std::size_t size,
                     std::uint64_t seed);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SOAK_PART_H_
