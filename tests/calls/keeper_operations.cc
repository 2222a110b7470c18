// A keeper, and tensor sets that are kept by it or not.
#include <array>
#include <vector>

#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kRows = 37, kColumns = 11;

// Off the shelf: a connection is for one thread.
ThingRef Connect(Caller& caller) {
  ThingRef keeper = caller.world().keepers.Take(caller.dice());
  if (keeper) return keeper;
  vmmshare_keeper* made = nullptr;
  if (caller.Do<vmmshare_keeper_connect>(
          static_cast<const char*>(caller.world().keeper_address.c_str()),
          kSecond, &made) != VMMSHARE_OK) {
    return nullptr;
  }
  return Own(made, vmmshare_keeper_close);
}

void OpenSet(Caller& caller, const vmmshare_memory* memory) {
  const vmmshare_driver* driver = caller.world().driver;
  vmmshare_weights* made = nullptr;
  if (caller.Do<vmmshare_weights_open>(driver, caller.Odd(memory), &made) ==
      VMMSHARE_OK) {
    caller.world().sets.Put(caller.dice(), Own(made, vmmshare_weights_close));
  }
}

void UseKeeper(Caller& caller) {
  const ThingRef thing = Connect(caller);
  if (!thing) return;
  vmmshare_keeper* const keeper = caller.Odd(thing->as<vmmshare_keeper>());
  constexpr std::array kNames = {"a", "b", "set", ""};
  const char* const name = kNames[caller.Below(caller.OneIn(30) ? 4 : 3)];
  const std::int64_t timeout = caller.OneIn(3) ? caller.Timeout() : kSecond;
  const vmmshare_driver* driver = caller.world().driver;
  switch (caller.Below(7)) {
    case 0: {
      const ThingRef memory = caller.world().memory.Look(caller.dice());
      const vmmshare_memory* its =
          memory ? memory->as<const vmmshare_memory>() : nullptr;
      // NULL is none of this keeper's errors.
      if (its == nullptr) {
        caller.Do<vmmshare_keeper_unlock>(keeper, name, timeout);
      } else {
        caller.Do<vmmshare_keeper_put>(keeper, name, its, timeout);
      }
      break;
    }
    case 1: {
      const vmmshare_import_options options = AnyImportOptions(caller);
      vmmshare_memory* made = nullptr;
      if (caller.Do<vmmshare_keeper_attach>(keeper, name, driver, &options,
                                            timeout, &made) == VMMSHARE_OK) {
        OpenSet(caller, KeepImported(caller, made, 0)->as<vmmshare_memory>());
      }
      break;
    }
    case 2:
      caller.Do<vmmshare_keeper_seal>(keeper, name, timeout);
      break;
    case 3:
      caller.Do<vmmshare_keeper_lock>(keeper, name, timeout / 10);
      break;
    case 4:
      caller.Do<vmmshare_keeper_unlock>(keeper, name, timeout);
      break;
    case 5:
      caller.Do<vmmshare_keeper_drop>(keeper, name, timeout);
      break;
    default: {
      vmmshare_text* text = nullptr;
      CheckText(caller, caller.Do<vmmshare_keeper_list>(keeper, timeout, &text),
                text);
    }
  }
  if (!caller.OneIn(6)) caller.world().keepers.Put(caller.dice(), thing);
}

ThingRef MakeLayout(Caller& caller) {
  vmmshare_weights_layout* layout = nullptr;
  if (caller.Do<vmmshare_weights_layout_create>(
          static_cast<const char*>("random"), &layout) != VMMSHARE_OK) {
    return nullptr;
  }
  ThingRef thing = Own(layout, vmmshare_weights_layout_close);
  caller.Do<vmmshare_weights_layout_note>(caller.Odd(layout), "key", "value");
  for (const char* name : {"first", "second", "first"}) {
    const std::int64_t shape[] = {kRows, kColumns};
    vmmshare_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.name = name;
    tensor.dtype = static_cast<std::uint32_t>(
        caller.OneIn(20) ? 99 : VMMSHARE_DTYPE_UINT8);
    tensor.rank = 2;
    tensor.shape = shape;
    std::uint64_t place = 0;
    caller.Do<vmmshare_weights_layout_add>(
        caller.Odd(layout), const_cast<const vmmshare_tensor*>(&tensor),
        &place);
  }
  return thing;
}

// Fills, seals or publishes a set in `memory`; answers whether it is one then.
bool WriteSet(Caller& caller, const vmmshare_memory* memory,
              const vmmshare_weights_layout* layout) {
  const vmmshare_driver* driver = caller.world().driver;
  vmmshare_weights_writer* writer = nullptr;
  if (caller.Do<vmmshare_weights_begin>(driver, memory, caller.Odd(layout),
                                        &writer) != VMMSHARE_OK) {
    return false;
  }
  const ThingRef its = Own(writer, vmmshare_weights_writer_close);
  const std::vector<std::uint8_t> bytes(kRows * kColumns, 7);
  for (std::uint64_t place = 0; place < 2; ++place) {
    const std::uint64_t offset = caller.OneIn(20) ? ~0ull - 3 : 0;
    caller.Do<vmmshare_weights_write>(caller.Odd(writer), place, offset,
                                      static_cast<const void*>(bytes.data()),
                                      std::uint64_t{bytes.size()});
  }
  caller.Do<vmmshare_weights_read_file>(writer, std::uint64_t{0}, "/nowhere",
                                        std::uint64_t{0});
  const auto flags = static_cast<std::uint32_t>(caller.Below(2));
  if (caller.OneIn(2)) {
    return caller.Do<vmmshare_weights_seal>(caller.Odd(writer), caller.Below(9),
                                            flags) == VMMSHARE_OK;
  }
  const ThingRef keeper = Connect(caller);
  if (!keeper) return false;
  std::uint64_t generation = 1;
  const vmmshare_status status = caller.Do<vmmshare_weights_publish>(
      caller.Odd(writer), keeper->as<vmmshare_keeper>(), "set", memory, flags,
      kSecond, &generation);
  if ((status == VMMSHARE_OK) != (generation != 0)) {
    caller.Find("a set that was published has no generation, or else has");
  }
  caller.world().keepers.Put(caller.dice(), keeper);
  return status == VMMSHARE_OK;
}

void MakeSet(Caller& caller) {
  const ThingRef thing = MakeLayout(caller);
  if (!thing) return;
  const vmmshare_weights_layout* layout = thing->as<vmmshare_weights_layout>();
  vmmshare_tensor tensor = {};
  tensor.struct_size = sizeof(tensor);
  caller.Do<vmmshare_weights_layout_tensor>(caller.Odd(layout), caller.Below(4),
                                            &tensor);
  vmmshare_memory_options options = {};
  options.struct_size = sizeof(options);
  options.size =
      std::max(std::uint64_t{1}, vmmshare_weights_layout_size(layout));
  if (caller.OneIn(2)) options.flags = VMMSHARE_ON_HOST;
  const ThingRef memory = MakeMemory(caller, options);
  if (!memory) return;
  const vmmshare_memory* const its = memory->as<vmmshare_memory>();
  if (WriteSet(caller, its, layout)) OpenSet(caller, its);
}

void LookAtSet(Caller& caller) {
  const ThingRef thing = caller.world().sets.Look(caller.dice());
  if (!thing) return;
  const vmmshare_weights* const set = thing->as<vmmshare_weights>();
  vmmshare_weights_generation(set);
  vmmshare_weights_fingerprint(set);
  vmmshare_tensor tensor = {};
  tensor.struct_size = sizeof(tensor);
  const std::uint64_t count = vmmshare_weights_count(set);
  const std::uint64_t place = caller.Below(count + 1);
  if (caller.Do<vmmshare_weights_tensor>(caller.Odd(set), place, &tensor) ==
      VMMSHARE_OK) {
    if (place == count) caller.Find("a set has a tensor after its last one");
    std::uint64_t found = 99;
    caller.Do<vmmshare_weights_find>(set, tensor.name, &found);
    if (found != place) caller.Find("a tensor is not where its name is");
  }
  vmmshare_text* text = nullptr;
  CheckText(caller,
            caller.Do<vmmshare_weights_metadata>(caller.Odd(set), &text), text);
  std::uint64_t compared = 0;
  if (caller.Do<vmmshare_weights_verify>(set, &compared) ==
      VMMSHARE_DATA_LOSS) {
    caller.Find("a sealed set has other bytes than were written");
  }
}

}  // namespace

std::vector<Operation> KeeperOperations() {
  return {{UseKeeper, 5}, {MakeSet, 2}, {LookAtSet, 2}};
}

}  // namespace vmm::testing
