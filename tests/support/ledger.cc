#include "tests/support/ledger.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/hostdriver/host_driver.h"
#include "platform/os/library.h"
#include "tests/support/mps.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using platform::Check;
using platform::Driver;

// In an inventory of a client of MPS.
constexpr char kMps[] = "is a client of MPS";
// What MPS's server keeps of a client that has ended is less than a granule
// (128 KiB for each was seen); what a test leaks is one or more.
constexpr std::uint64_t kServersOwn = (2 << 20) - 1;

using ReadLedger = decltype(&::vmmshareHostLedger);

ReadLedger FindLedger() {
  const absl::StatusOr<platform::Library> library =
      platform::Library::OpenPath(HostDriverPath());
  if (!library.ok()) platform::Die(library.status().ToString());
  void* const found = library->Find("vmmshareHostLedger");
  Check(found != nullptr, "the host-memory driver has no vmmshareHostLedger");
  return reinterpret_cast<ReadLedger>(found);
}

void AddHostLedger(Inventory& inventory) {
  static const ReadLedger read = FindLedger();
  VmmshareHostLedger ledger = {};
  Check(read(&ledger, sizeof ledger) == 0, "vmmshareHostLedger failed");
  inventory["handles"] = ledger.handles;
  inventory["imported handles"] = ledger.imported_handles;
  inventory["references to handles"] = ledger.references;
  inventory["mappings"] = ledger.mappings;
  inventory["address reservations"] = ledger.reservations;
  inventory["bytes"] = ledger.bytes;
  inventory["streams"] = ledger.streams;
  inventory["events"] = ledger.events;
  inventory["primary context retains"] = ledger.contexts;
  inventory["device blocks"] = ledger.device_blocks;
  inventory["host blocks"] = ledger.host_blocks;
  inventory["opened legacy IPC handles"] = ledger.legacy_opens;
  inventory["pools"] = ledger.pools;
  inventory["pool blocks"] = ledger.pool_blocks;
}

// Free memory of `device`, in `inventory` if its primary context is active.
void AddFreeMemory(const Driver& driver, int ordinal, Inventory& inventory) {
  CUdevice device = 0;
  unsigned flags = 0;
  int active = 0;
  if (driver->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
      driver->cuDevicePrimaryCtxGetState(device, &flags, &active) !=
          CUDA_SUCCESS ||
      active == 0) {
    return;
  }
  CUcontext context = nullptr;
  if (driver->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
    return;
  }
  std::size_t free = 0, total = 0;
  if (driver->cuCtxPushCurrent(context) == CUDA_SUCCESS) {
    if (driver->cuMemGetInfo(&free, &total) == CUDA_SUCCESS) {
      inventory[absl::StrCat(kFreeBytes, ordinal)] = free;
    }
    driver->cuCtxPopCurrent(&context);
  }
  driver->cuDevicePrimaryCtxRelease(device);
}

// Those that are current for this thread, the uppermost last, and takes them away.
std::vector<CUcontext> TakeContexts(const Driver& driver) {
  constexpr std::size_t kMost = 1000;
  std::vector<CUcontext> taken;
  CUcontext context = nullptr;
  while (taken.size() < kMost &&
         driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS &&
         context != nullptr &&
         driver->cuCtxPopCurrent(&context) == CUDA_SUCCESS) {
    taken.insert(taken.begin(), context);
  }
  return taken;
}

}  // namespace

void DropContexts(const Driver& driver, std::size_t keep) {
  std::vector<CUcontext> all = TakeContexts(driver);
  if (all.size() > keep) all.resize(keep);
  for (const CUcontext context : all) driver->cuCtxPushCurrent(context);
}

std::size_t CountContexts(const Driver& driver) {
  const std::vector<CUcontext> all = TakeContexts(driver);
  for (const CUcontext context : all) driver->cuCtxPushCurrent(context);
  return all.size();
}

Inventory TakeInventory(const Driver& driver) {
  Inventory inventory;
  if (driver.is_host_memory()) {
    AddHostLedger(inventory);
  } else {
    int count = 0;
    driver->cuDeviceGetCount(&count);
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      AddFreeMemory(driver, ordinal, inventory);
    }
    if (UnderMps()) inventory[kMps] = 1;
    static bool told = false;
    if (inventory.empty() && !std::exchange(told, true)) {
      std::printf(
          "no ledger: a real driver keeps none, and no device has a context "
          "from which to ask its free memory\n");
    }
  }
  CUcontext current = nullptr;
  if (driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS) {
    inventory["current context"] = reinterpret_cast<std::uintptr_t>(current);
  }
  inventory[std::string(kContexts)] = CountContexts(driver);
  return inventory;
}

std::vector<std::string> Differences(const Inventory& before,
                                     const Inventory& after) {
  std::vector<std::string> lines;
  const auto count = [](const Inventory& inventory, const std::string& name) {
    const auto found = inventory.find(name);
    return found == inventory.end() ? "none" : absl::StrCat(found->second);
  };
  Inventory names = before;
  names.insert(after.begin(), after.end());
  for (const auto& [name, unused] : names) {
    if (absl::StartsWith(name, kFreeBytes) && before.contains(name) &&
        after.contains(name)) {
      const std::uint64_t then = before.at(name);
      const std::uint64_t now = after.at(name);
      const std::uint64_t less = now < then ? then - now : 0;
      if (less <= (before.contains(kMps) ? kServersOwn : 0)) continue;
    }
    const std::string then = count(before, name);
    const std::string now = count(after, name);
    if (then != now) {
      lines.push_back(
          absl::StrCat(name, ": ", then, " before, ", now, " after"));
    }
  }
  return lines;
}

ExpectLedgerUnchanged::ExpectLedgerUnchanged(const Driver& driver)
    : driver_(driver), before_(TakeInventory(driver)) {}

ExpectLedgerUnchanged::~ExpectLedgerUnchanged() {
  for (const std::string& line : Differences(before_, TakeInventory(driver_))) {
    ADD_FAILURE() << "the driver holds something else than before: " << line;
  }
}

}  // namespace vmm::testing
