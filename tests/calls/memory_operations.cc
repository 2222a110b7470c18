// Memory by itself: made, adopted, handed out as raw handles and taken in again.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/calls/operations.h"

namespace vmm::testing {

vmmshare_memory_options AnyMemoryOptions(Caller& caller) {
  vmmshare_memory_options options = {};
  options.struct_size = sizeof(options);
  options.size = 1 + caller.Below(5'000'000);
  if (caller.OneIn(5)) options.max_chunk_size = 1 + caller.Below(4'000'000);
  if (caller.OneIn(8)) options.alignment = 1ull << caller.Below(26);
  if (caller.OneIn(3)) options.flags = VMMSHARE_ON_HOST;
  if (caller.OneIn(14)) options.flags |= VMMSHARE_PRIVATE;
  if (caller.OneIn(10)) options.flags |= VMMSHARE_RDMA_TRY;
  if (caller.OneIn(6)) options.kinds = VMMSHARE_KIND_POSIX_FD;
  if (caller.OneIn(10)) options.kinds = VMMSHARE_KIND_LEGACY_IPC;
  // What makes no sense.
  if (caller.OneIn(30)) options.size = caller.OneIn(2) ? 0 : 1ull << 50;
  if (caller.OneIn(40)) options.alignment = caller.Below(1000);
  if (caller.OneIn(40)) options.kinds = caller.Below(256);
  if (caller.OneIn(40)) options.flags |= 1u << caller.Below(32);
  if (caller.OneIn(40)) options.numa_node = 99;
  if (caller.OneIn(40)) options.struct_size = caller.Below(sizeof(options));
  return options;
}

vmmshare_import_options AnyImportOptions(Caller& caller) {
  vmmshare_import_options options = {};
  options.struct_size = sizeof(options);
  if (caller.OneIn(2)) options.flags |= VMMSHARE_IMPORT_WRITABLE;
  if (caller.OneIn(4)) options.flags |= VMMSHARE_IMPORT_HOST_ACCESS;
  if (caller.OneIn(10)) options.alignment = 1ull << caller.Below(26);
  if (caller.OneIn(40)) options.alignment = ~0ull;
  if (caller.OneIn(40)) options.flags |= 64;
  if (caller.OneIn(40)) options.struct_size = caller.Below(sizeof(options));
  return options;
}

ThingRef MakeMemory(Caller& caller, const vmmshare_memory_options& options) {
  vmmshare_memory* made = nullptr;
  const vmmshare_device* device = caller.world().device;
  if (caller.Do<vmmshare_memory_create>(caller.Odd(device), &options, &made) !=
      VMMSHARE_OK) {
    return nullptr;
  }
  ThingRef memory = Own(made, vmmshare_memory_close);
  memory->address = vmmshare_memory_address(made);
  memory->size = vmmshare_memory_size(made);
  memory->is_on_host = (options.flags & VMMSHARE_ON_HOST) != 0;
  memory->fill = static_cast<std::uint8_t>(1 + caller.Below(255));
  if (memory->size < options.size ||
      vmmshare_memory_requested_size(made) != options.size ||
      (options.alignment != 0 && memory->address % options.alignment != 0)) {
    caller.Find("memory is not as large, or aligned, as it was asked for");
  }
  caller.Fill(*memory, caller.stream());
  return memory;
}

ThingRef KeepImported(Caller& caller, vmmshare_memory* memory,
                      std::uint8_t fill) {
  ThingRef imported = Own(memory, vmmshare_memory_close);
  imported->address = vmmshare_memory_address(memory);
  imported->size = vmmshare_memory_size(memory);
  imported->fill = fill;
  imported->is_imported = true;
  caller.CheckFill(*imported, "memory that was opened");
  caller.world().imported_memory.Put(caller.dice(), imported);
  return imported;
}

namespace {

void Create(Caller& caller) {
  ThingRef memory = MakeMemory(caller, AnyMemoryOptions(caller));
  if (memory) caller.world().memory.Put(caller.dice(), std::move(memory));
}

ThingRef AnyMemory(Caller& caller) {
  World& world = caller.world();
  return (caller.OneIn(2) ? world.memory : world.imported_memory)
      .Look(caller.dice());
}

void Look(Caller& caller) {
  const ThingRef thing = AnyMemory(caller);
  if (!thing) return;
  caller.CheckFill(*thing, "memory");
  const vmmshare_memory* memory = thing->as<vmmshare_memory>();
  std::uint64_t base = 0, size = 0;
  std::uint8_t uuid[16];
  vmmshare_memory_disclosed(memory, &base, &size);
  vmmshare_memory_device_uuid(memory, uuid);
  vmmshare_memory_offset(memory);
  vmmshare_memory_numa_node(memory);
  if (thing->is_imported && vmmshare_memory_kinds(memory) != 0) {
    caller.Find("imported memory can be shared");
  }
  vmmshare_text* text = nullptr;
  int capable = 0;
  std::int64_t return_in = 0;
  memory = caller.Odd(memory);
  switch (caller.Below(5)) {
    case 0:
      return CheckText(
          caller, caller.Do<vmmshare_memory_weakness>(memory, &text), text);
    case 1:
      return CheckText(caller,
                       caller.Do<vmmshare_memory_rdma>(memory, &capable, &text),
                       text);
    case 2:
      return CheckText(
          caller, caller.Do<vmmshare_memory_passed_over>(memory, &text), text);
    case 3:
      return CheckText(
          caller, caller.Do<vmmshare_memory_neighbours>(memory, &text), text);
    default:
      caller.Do<vmmshare_memory_lease>(memory, &return_in);
  }
}

void Classify(Caller& caller) {
  const ThingRef thing = AnyMemory(caller);
  const std::uint64_t address = thing ? thing->address : caller.Below(~0ull);
  vmmshare_pointer_info info = {};
  info.struct_size = caller.OneIn(30) ? 3 : sizeof(info);
  const vmmshare_driver* driver = caller.world().driver;
  caller.Do<vmmshare_classify>(caller.Odd(driver), address, &info);
  std::int32_t ordinal = 0;
  caller.Do<vmmshare_reached_from>(driver, address, &ordinal);
}

void WriteWithin(Caller& caller) {
  const ThingRef thing = AnyMemory(caller);
  if (!thing || thing->size < 200) return;
  // Equal bytes: others look at them meanwhile.
  const std::uint64_t at = caller.OneIn(8) ? ~0ull - 9 : caller.Below(100);
  caller.Do<vmmshare_memory_write>(
      caller.Odd(thing->as<const vmmshare_memory>()), at, thing->address,
      1 + caller.Below(100));
}

void Adopt(Caller& caller) {
  const ThingRef thing = AnyMemory(caller);
  if (!thing) return;
  const std::uint64_t offset = caller.OneIn(3) ? caller.Below(thing->size) : 0;
  const std::uint64_t size = thing->size - offset;
  const vmmshare_driver* driver =
      caller.Odd(const_cast<const vmmshare_driver*>(caller.world().driver));
  vmmshare_memory* made = nullptr;
  const vmmshare_status status =
      caller.OneIn(2)
          ? caller.Do<vmmshare_memory_adopt>(driver, thing->address + offset,
                                             size, &made)
          : caller.Do<vmmshare_memory_adopt_as>(
                driver, thing->address + offset, size,
                static_cast<std::uint32_t>(caller.Below(256)), &made);
  if (status != VMMSHARE_OK) return;
  ThingRef adopted = Own(made, vmmshare_memory_close);
  adopted->address = thing->address + offset;
  adopted->size = size;
  adopted->fill = thing->fill;
  adopted->keeps = {thing};
  caller.world().memory.Put(caller.dice(), std::move(adopted));
}

void ExportAndImport(Caller& caller) {
  const ThingRef thing = caller.world().memory.Look(caller.dice());
  if (!thing) return;
  const vmmshare_memory* memory = thing->as<vmmshare_memory>();
  std::vector<vmmshare_raw_handle> handles;
  const std::uint32_t chunks = vmmshare_memory_chunks(memory);
  const std::uint32_t kind = caller.OneIn(6)
                                 ? 1u << caller.Below(9)
                                 : std::uint32_t{VMMSHARE_KIND_POSIX_FD};
  for (std::uint32_t i = 0; i < chunks; ++i) {
    vmmshare_raw_handle handle;
    if (caller.Do<vmmshare_memory_export>(caller.Odd(memory), i, kind,
                                          &handle) == VMMSHARE_OK) {
      handles.push_back(handle);
    }
  }
  const bool is_whole = chunks != 0 && handles.size() == chunks;
  vmmshare_memory* made = nullptr;
  const vmmshare_import_options options = AnyImportOptions(caller);
  const vmmshare_device* device = caller.world().device;
  if (!handles.empty() &&
      caller.Do<vmmshare_memory_import>(
          caller.Odd(device), handles.data(),
          static_cast<std::uint32_t>(handles.size()),
          thing->is_on_host ? std::uint32_t{VMMSHARE_ON_HOST} : 0u, 0, &options,
          &made) == VMMSHARE_OK) {
    const bool is_known = is_whole && thing->keeps.empty();
    KeepImported(caller, made, is_known ? thing->fill : 0);
  }
  for (const vmmshare_raw_handle& each : handles) {
    if (each.os_handle >= 0) ::close(static_cast<int>(each.os_handle));
  }
}

void ExportDmaBufs(Caller& caller) {
  const ThingRef thing = AnyMemory(caller);
  if (!thing) return;
  std::array<vmmshare_dma_buf, 8> bufs;
  std::uint32_t count = 0;
  const auto room = static_cast<std::uint32_t>(caller.Below(9));
  const auto flags = static_cast<std::uint32_t>(caller.Below(2));
  const vmmshare_status status =
      caller.OneIn(2)
          ? caller.Do<vmmshare_memory_dma_bufs>(
                caller.Odd(thing->as<const vmmshare_memory>()),
                4096 * caller.Below(600), 4096 * caller.Below(600), flags,
                bufs.data(), room, &count)
          : caller.Do<vmmshare_dma_bufs>(
                const_cast<const vmmshare_driver*>(caller.world().driver),
                thing->address + caller.Below(5000), caller.Below(100'000),
                flags, bufs.data(), room, &count);
  if (status != VMMSHARE_OK) return;
  for (std::uint32_t i = 0; i < count; ++i) ::close(bufs[i].descriptor);
}

void Close(Caller& caller) {
  // What goes out of scope is closed, unless another thread uses it.
  const std::vector<Shelf*> all = caller.world().All();
  Shelf* const chosen = all[caller.Below(all.size())];
  // Live blocks are their pool's, which is told when they end.
  if (chosen != &caller.world().blocks) chosen->Take(caller.dice());
}

}  // namespace

std::vector<Operation> MemoryOperations() {
  return {{Create, 6},        {Look, 6},  {Classify, 2},
          {WriteWithin, 2},   {Adopt, 2}, {ExportAndImport, 3},
          {ExportDmaBufs, 1}, {Close, 8}};
}

}  // namespace vmm::testing
