#include "tests/calls/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "platform/base/check.h"
#include "tests/support/ledger.h"
#include "tests/support/test_driver.h"
#include "vmm/c/internal/handles.h"

namespace vmm::testing {
namespace {

// What somebody has of the driver as long as anything is open.
// Streams, events and contexts are the library's own, which keeps some for later.
constexpr const char* kGivenBack[] = {
    "handles",       "imported handles",          "references to handles",
    "mappings",      "address reservations",      "bytes",
    "device blocks", "opened legacy IPC handles", "pools",
    "pool blocks"};

void MustSucceed(vmmshare_status status, const char* call) {
  platform::Check(status == VMMSHARE_OK, call);
}

}  // namespace

World::World(const std::string& where, std::string keeper, bool with_faults)
    : real(TestDriver()),
      has_faults(with_faults),
      board(where),
      directory(where),
      keeper_address(std::move(keeper)),
      driver(new vmmshare_driver(FaultyDriver(real, &faults))) {
  MustSucceed(vmmshare_device_open(driver, 0, &device, nullptr),
              "vmmshare_device_open");
  MustSucceed(vmmshare_device_open(driver, 1, &second_device, nullptr),
              "vmmshare_device_open");
  platform::Check(real->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                      real->cuCtxSetCurrent(context) == CUDA_SUCCESS,
                  "no context");
  // What a device can is remembered: a failure would be for good.
  for (std::uint32_t kind = 1; kind <= VMMSHARE_KIND_STREAM_POOL; kind *= 2) {
    vmmshare_device_probe(device, kind, nullptr);
    vmmshare_device_probe(second_device, kind, nullptr);
  }
  streams.resize(2);
  for (CUstream& each : streams) {
    platform::Check(real->cuStreamCreate(&each, 0) == CUDA_SUCCESS,
                    "cuStreamCreate");
  }
}

World::~World() {
  for (CUstream each : streams) real->cuStreamDestroy(each);
  vmmshare_device_close(device);
  vmmshare_device_close(second_device);
  vmmshare_driver_close(driver);
  real->cuDevicePrimaryCtxRelease(0);
}

std::vector<Shelf*> World::All() {
  return {&memory,
          &imported_memory,
          &fetched,
          &servers,
          &shares,
          &pools,
          &blocks,
          &imported_pools,
          &imported_blocks,
          &fence_pools,
          &imported_fence_pools,
          &fences,
          &imported_fences,
          &fence_arrays,
          &ring_homes,
          &rings,
          &regions,
          &restorables,
          &imported_restorables,
          &keepers,
          &sets};
}

void World::CloseAll(const Shelf::Dice& dice, absl::Duration patience) {
  std::vector<Shelf*> all = All();
  for (std::size_t i = all.size(); i > 1; --i) {
    std::swap(all[i - 1], all[dice(i)]);
  }
  for (Shelf* each : all) {
    while (each->Take(dice) != nullptr) {
    }
  }
  // Of a real driver nobody knows but what is free of a device, which other
  // processes use as well.
  if (!real.is_host_memory()) return;
  Inventory left;
  const absl::Time deadline = absl::Now() + patience;
  do {
    left.clear();
    const Inventory now = TakeInventory(real);
    for (const char* each : kGivenBack) {
      if (now.at(each) != 0) left[each] = now.at(each);
    }
    // A pace, not a condition.
    if (!left.empty()) absl::SleepFor(absl::Milliseconds(10));
  } while (!left.empty() && absl::Now() < deadline);
  for (const auto& [what, count] : left) {
    ADD_FAILURE() << "all is closed, and the driver still has " << count << " "
                  << what;
  }
}

}  // namespace vmm::testing
