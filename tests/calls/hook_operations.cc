// Devices, and the hooks of allocators.
#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

void LookAtDevices(Caller& caller) {
  const vmmshare_driver* driver = caller.world().driver;
  const vmmshare_device* device = caller.world().device;
  const vmmshare_device* other = caller.world().second_device;
  std::int32_t number = 0;
  std::uint8_t uuid[16];
  vmmshare_device* made = nullptr;
  switch (caller.Below(6)) {
    case 0:
      caller.Do<vmmshare_device_count>(caller.Odd(driver), &number);
      return;
    case 1: {
      const auto ordinal = static_cast<std::int32_t>(caller.Below(4));
      if (caller.Do<vmmshare_device_open>(caller.Odd(driver), ordinal, &made) ==
          VMMSHARE_OK) {
        if (vmmshare_device_ordinal(made) != ordinal) {
          caller.Find("a device has another number");
        }
        if (*vmmshare_device_name(made) == '\0' ||
            *vmmshare_device_uuid_text(made) == '\0' ||
            *vmmshare_driver_describe(driver) == '\0') {
          caller.Find("a device, or its driver, has no name");
        }
        vmmshare_device_close(made);
      }
      return;
    }
    case 2:
      vmmshare_device_uuid(device, uuid);
      if (caller.OneIn(3)) uuid[caller.Below(16)] ^= 1;
      if (caller.Do<vmmshare_device_open_uuid>(
              caller.Odd(driver), const_cast<const std::uint8_t*>(uuid),
              &made) == VMMSHARE_OK) {
        vmmshare_device_close(made);
      }
      return;
    case 3:
      caller.Do<vmmshare_device_can_access>(caller.Odd(device),
                                            caller.Odd(other), &number);
      return;
    case 4:
      caller.Do<vmmshare_device_probe>(
          caller.Odd(device), 1u << static_cast<unsigned>(caller.Below(9)));
      return;
    default:
      caller.Do<vmmshare_stream_is_captured>(
          caller.Odd(driver), static_cast<void*>(caller.stream()), &number);
      if (number != 0) caller.Find("a stream is captured by nobody");
  }
}

void UseTorch(Caller& caller) {
  const ThingRef pool = caller.world().pools.Look(caller.dice());
  if (!pool) return;
  caller.Do<vmmshare_torch_set_pool>(
      0, caller.OneIn(4) ? nullptr : pool->as<vmmshare_pool>());
  Thing memory;
  memory.size = 1 + caller.Below(100'000);
  memory.fill = static_cast<std::uint8_t>(1 + caller.Below(255));
  const bool is_torchs = caller.OneIn(2);
  void* const got = is_torchs
                        ? vmmshare_torch_alloc(memory.size, 0, caller.stream())
                        : vmmshare_cupy_malloc(pool->handle, memory.size, 0);
  if (got != nullptr) {
    memory.address = reinterpret_cast<std::uintptr_t>(got);
    caller.Fill(memory, caller.stream());
    caller.CheckFill(memory, "memory of a hook");
    if (is_torchs) {
      vmmshare_torch_free(got, memory.size, 0, caller.stream());
    } else {
      vmmshare_cupy_free(pool->handle, got, 0);
    }
  }
  vmmshare_error* error = nullptr;
  if (vmmshare_hooks_last_error(&error) != VMMSHARE_OK) {
    vmmshare_error_free(error);
  }
  caller.Do<vmmshare_torch_set_pool>(0, static_cast<vmmshare_pool*>(nullptr));
}

}  // namespace

std::vector<Operation> HookOperations() {
  return {{LookAtDevices, 3}, {UseTorch, 2}};
}

}  // namespace vmm::testing
