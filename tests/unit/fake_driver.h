// A driver of a few counters, to test the fault machinery on its own.
#ifndef VMMSHARE_TESTS_UNIT_FAKE_DRIVER_H_
#define VMMSHARE_TESTS_UNIT_FAKE_DRIVER_H_

#include <cstdint>
#include <map>
#include <string>

#include "platform/cuda/driver.h"

namespace vmm::testing {

// What the fake driver holds: "handles", "address reservations", "mappings";
// and how often each entry was really called.
struct FakeState {
  std::map<std::string, std::uint64_t> held = {
      {"handles", 0}, {"address reservations", 0}, {"mappings", 0}};
  std::map<std::string, int> performed;
};
FakeState& Fake();

// Loads it, with an empty state. cuMemCreate and cuMemRelease, reserve and
// free, map and unmap, cuMemGetInfo work; other required entries answer
// NOT_SUPPORTED; optional ones are absent. `host_memory` sets that mark.
platform::Driver LoadFakeDriver(bool host_memory = false);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_FAKE_DRIVER_H_
