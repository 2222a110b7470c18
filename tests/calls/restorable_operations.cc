// Regions, and memory that its owner releases and restores: after that its contents
// are those from before, or those that it was filled with.
#include <stdexcept>

#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

// What every restorable has, whoever fills it.
constexpr std::uint8_t kFill = 0x5a;

ThingRef ARegion(Caller& caller) {
  // Off the shelf: nobody else releases it, or looks at it while it is released.
  ThingRef region = caller.world().regions.Take(caller.dice());
  if (region) return region;
  const vmmshare_device* device = caller.world().device;
  vmmshare_region* made = nullptr;
  if (caller.Do<vmmshare_region_create>(caller.Odd(device), &made) !=
      VMMSHARE_OK) {
    return nullptr;
  }
  region = Own(made, vmmshare_region_close);
  region->fill = static_cast<std::uint8_t>(1 + caller.Below(255));
  return region;
}

void CheckRegion(Caller& caller, const Thing& region) {
  Thing part;
  part.fill = region.fill;
  for (const auto& [address, size] : region.parts) {
    part.address = address;
    part.size = size;
    caller.CheckFill(part, "memory of a region");
  }
}

void AllocateIn(Caller& caller, Thing& thing) {
  std::uint64_t address = 1;
  const std::uint64_t size = caller.OneIn(30) ? 0 : 1 + caller.Below(3'000'000);
  if (caller.Do<vmmshare_region_allocate>(
          caller.Odd(thing.as<vmmshare_region>()), size, &address) !=
      VMMSHARE_OK) {
    if (address != 0) caller.Find("a region gave memory, and failed");
    return;
  }
  Thing part;
  part.address = address;
  part.size = size;
  part.fill = thing.fill;
  caller.Fill(part, caller.stream());
  thing.parts.emplace_back(address, size);
}

// A release that fails has changed nothing, but where the driver does not unmap.
bool IsReleased(Caller& caller, const vmmshare_region* region) {
  vmmshare_region_statistics all = {};
  all.struct_size = sizeof(all);
  if (vmmshare_region_get_statistics(region, &all, nullptr) != VMMSHARE_OK) {
    caller.Find("a region has no statistics");
  }
  return all.is_released != 0;
}

void UseRegion(Caller& caller) {
  const ThingRef thing = ARegion(caller);
  if (!thing) return;
  vmmshare_region* const region = thing->as<vmmshare_region>();
  CheckRegion(caller, *thing);
  if (thing->parts.size() < 2) {
    AllocateIn(caller, *thing);
  } else if (caller.OneIn(3)) {
    if (caller.Do<vmmshare_region_free>(
            caller.Odd(region), thing->parts.back().first) == VMMSHARE_OK) {
      thing->parts.pop_back();
    }
  } else if (caller.Do<vmmshare_region_release>(caller.Odd(region), 0u) ==
                 VMMSHARE_OK ||
             IsReleased(caller, region)) {
    vmmshare_region_statistics all = {};
    all.struct_size = sizeof(all);
    const vmmshare_region* const its = region;
    if (caller.Do<vmmshare_region_get_statistics>(its, &all) == VMMSHARE_OK &&
        (all.is_released != 1 || all.allocations != thing->parts.size())) {
      caller.Find("a region that is released says otherwise");
    }
    // Another process may have the room; it is not for ever.
    bool is_back = false;
    for (int i = 0; i < 3 && !is_back; ++i) {
      is_back = caller.Do<vmmshare_region_restore>(region) == VMMSHARE_OK;
    }
    if (!is_back) return;
    CheckRegion(caller, *thing);
  }
  caller.world().regions.Put(caller.dice(), thing);
}

ThingRef MakeRestorable(Caller& caller) {
  const ThingRef server = AServer(caller);
  if (!server) return nullptr;
  const vmmshare_memory_options options = AnyMemoryOptions(caller);
  const vmmshare_device* device = caller.world().device;
  vmmshare_restorable* made = nullptr;
  if (caller.Do<vmmshare_restorable_create>(
          caller.Odd(server->as<vmmshare_server>()), device, &options, &made) !=
      VMMSHARE_OK) {
    return nullptr;
  }
  ThingRef thing = Own(made, vmmshare_restorable_close);
  thing->address = vmmshare_restorable_address(made);
  thing->size = vmmshare_restorable_requested_size(made);
  thing->fill = kFill;
  caller.Fill(*thing, caller.stream());
  Post(caller, Offered::kRestorable,
       OfferOf(vmmshare_restorable_text(made), kFill, thing->size));
  return thing;
}

vmmshare_status FillAgain(void* user, std::uint64_t address,
                          std::uint64_t size) {
  Caller& caller = *static_cast<Caller*>(user);
  if (caller.OneIn(5)) return VMMSHARE_RESOURCE_EXHAUSTED;
  Thing memory;
  memory.address = address;
  memory.size = size;
  memory.fill = kFill;
  caller.Fill(memory, caller.stream());
  return VMMSHARE_OK;
}

void UseRestorable(Caller& caller) {
  ThingRef thing = caller.world().restorables.Take(caller.dice());
  if (!thing) thing = MakeRestorable(caller);
  if (!thing) return;
  vmmshare_restorable* const restorable = thing->as<vmmshare_restorable>();
  if (vmmshare_restorable_is_released(restorable) == 0) {
    caller.CheckFill(*thing, "a restorable");
    // Whoever has it is to let go, and does so only when it happens to.
    caller.Do<vmmshare_restorable_release>(
        caller.Odd(restorable), static_cast<std::uint32_t>(caller.Below(2)),
        caller.Timeout() / 4);
  } else {
    vmmshare_restore_options options = {};
    options.struct_size = caller.OneIn(30) ? 9 : sizeof(options);
    options.user = &caller;
    if (caller.OneIn(2)) options.fill = &FillAgain;
    if (caller.OneIn(6)) options.path = caller.OneIn(2) ? "/" : "/nowhere";
    const bool is_back =
        caller.Do<vmmshare_restorable_restore>(
            caller.Odd(restorable),
            const_cast<const vmmshare_restore_options*>(&options),
            kSecond) == VMMSHARE_OK;
    if ((vmmshare_restorable_is_released(restorable) == 0) != is_back) {
      caller.Find("a restorable is restored after a failure, or else not");
    }
    if (is_back) caller.CheckFill(*thing, "a restorable that was restored");
  }
  caller.world().restorables.Put(caller.dice(), thing);
}

void UseImported(Caller& caller) {
  World& world = caller.world();
  ThingRef thing = world.imported_restorables.Take(caller.dice());
  if (!thing) {
    const std::optional<Offer> offer = Read(caller, Offered::kRestorable);
    if (!offer) return;
    const vmmshare_driver* driver = world.driver;
    const vmmshare_import_options options = AnyImportOptions(caller);
    vmmshare_restorable* made = nullptr;
    if (caller.Do<vmmshare_restorable_open>(
            caller.Odd(driver), TextOf(caller, *offer).c_str(), &options,
            caller.Timeout(), &made) != VMMSHARE_OK) {
      return;
    }
    thing = Own(made, vmmshare_restorable_close);
    thing->address = vmmshare_restorable_address(made);
    thing->size = vmmshare_restorable_size(made);
    if (thing->size < offer->size) caller.Find("a restorable is too small");
    thing->size = offer->size;
    thing->fill = offer->fill;
  }
  vmmshare_restorable* const restorable = thing->as<vmmshare_restorable>();
  if (vmmshare_restorable_is_released(restorable) != 0) {
    caller.Do<vmmshare_restorable_restore>(
        caller.Odd(restorable),
        static_cast<const vmmshare_restore_options*>(nullptr),
        caller.Timeout());
  } else {
    caller.CheckFill(*thing, "another process's restorable");
    std::int64_t return_in = 0;
    const vmmshare_restorable* const its = restorable;
    caller.Do<vmmshare_restorable_lease>(caller.Odd(its), &return_in);
    caller.Do<vmmshare_restorable_release>(caller.Odd(restorable), 0u,
                                           caller.Timeout());
  }
  if (caller.OneIn(2)) world.imported_restorables.Put(caller.dice(), thing);
}

}  // namespace

std::vector<Operation> RestorableOperations() {
  return {{UseRegion, 4}, {UseRestorable, 4}, {UseImported, 4}};
}

}  // namespace vmm::testing
