// What a process that makes random calls has, for all of its threads.
#ifndef VMMSHARE_TESTS_CALLS_WORLD_H_
#define VMMSHARE_TESTS_CALLS_WORLD_H_

#include <cuda.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "tests/calls/board.h"
#include "tests/calls/thing.h"
#include "tests/support/driver_faults.h"
#include "vmm/c/vmmshare.h"

namespace vmm::testing {

struct World {
  // `keeper` is the address of one. With `has_faults` calls fail (caller.h).
  World(const std::string& directory, std::string keeper, bool has_faults);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  // Closes everything, in an order that dice choose, and checks that the driver
  // holds nothing more for this process, at the latest after `patience`: pools of
  // others end by threads of their own.
  void CloseAll(const Shelf::Dice& dice, absl::Duration patience);

  const platform::Driver& real;  // For what the test itself does.
  DriverFaults faults;
  std::mutex
      failing;  // Of the thread whose calls are to fail: faults are one's.
  const bool has_faults;
  const Board board;
  const std::string directory;
  const std::string keeper_address;
  vmmshare_driver* driver;
  vmmshare_device* device;
  vmmshare_device* second_device;
  CUcontext context = nullptr;
  std::vector<CUstream> streams;  // Of all threads.

  // What imports is separate from what has: only the second is shared again.
  Shelf memory{8}, imported_memory{8}, fetched{4};
  Shelf servers{2}, shares{20};
  Shelf pools{4}, blocks{30}, imported_pools{8}, imported_blocks{20};
  Shelf fence_pools{3}, imported_fence_pools{4}, fences{10},
      imported_fences{10}, fence_arrays{3};
  Shelf ring_homes{2}, rings{4};
  Shelf regions{2}, restorables{3}, imported_restorables{4};
  Shelf keepers{2}, sets{4};
  std::vector<Shelf*> All();
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CALLS_WORLD_H_
