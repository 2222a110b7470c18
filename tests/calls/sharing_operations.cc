// Servers, what they serve, and what is opened of it.
#include <unistd.h>

#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

void StartServer(Caller& caller) {
  vmmshare_server_options options = {};
  options.struct_size = caller.OneIn(40) ? 11 : sizeof(options);
  options.directory = caller.world().directory.c_str();
  if (caller.OneIn(4)) options.max_sessions = 2 + caller.Below(4);
  if (caller.OneIn(4)) options.max_leases = 2 + caller.Below(6);
  if (caller.OneIn(6)) options.request_timeout_ns = caller.Timeout();
  if (caller.OneIn(6)) options.transfer_timeout_ns = kSecond;
  vmmshare_server* made = nullptr;
  if (caller.Do<vmmshare_server_start>(&options, &made) != VMMSHARE_OK) return;
  if (*vmmshare_server_address(made) == '\0') {
    caller.Find("a server has no address");
  }
  caller.world().servers.Put(caller.dice(), Own(made, vmmshare_server_close));
}

void ShareMemory(Caller& caller) {
  const ThingRef server = AServer(caller);
  const ThingRef memory = caller.world().memory.Look(caller.dice());
  if (!server || !memory) return;
  vmmshare_share* made = nullptr;
  if (caller.Do<vmmshare_server_share_memory>(
          caller.Odd(server->as<vmmshare_server>()),
          caller.Odd(memory->as<const vmmshare_memory>()),
          &made) != VMMSHARE_OK) {
    return;
  }
  ThingRef share = Own(made, vmmshare_share_close);
  share->text = vmmshare_share_text(made);
  share->keeps = memory->keeps;
  // Who opens adopted memory has all that lies around it.
  const bool is_whole = memory->keeps.empty();
  const std::uint64_t size =
      vmmshare_memory_requested_size(memory->as<vmmshare_memory>());
  Post(caller, Offered::kMemory,
       OfferOf(share->text, is_whole ? memory->fill : 0, is_whole ? size : 0));
  caller.world().shares.Put(caller.dice(), std::move(share));
}

void OpenMemory(Caller& caller) {
  const std::optional<Offer> offer = Read(caller, Offered::kMemory);
  if (!offer) return;
  const std::string text = TextOf(caller, *offer);
  const vmmshare_import_options options = AnyImportOptions(caller);
  const vmmshare_driver* driver = caller.world().driver;
  vmmshare_memory* made = nullptr;
  if (caller.Do<vmmshare_memory_open>(caller.Odd(driver), text.c_str(),
                                      caller.OneIn(4) ? nullptr : &options,
                                      caller.Timeout(), &made) != VMMSHARE_OK) {
    return;
  }
  if (offer->size != 0 && vmmshare_memory_requested_size(made) != offer->size) {
    caller.Find("memory was opened with another size than it has");
  }
  KeepImported(caller, made, offer->fill);
}

void Fetch(Caller& caller) {
  World& world = caller.world();
  ThingRef thing = world.fetched.Take(caller.dice());
  if (!thing) {
    const std::optional<Offer> offer = Read(caller, Offered::kMemory);
    if (!offer) return;
    vmmshare_fetched* made = nullptr;
    const vmmshare_driver* driver = world.driver;
    if (caller.Do<vmmshare_fetch>(caller.Odd(driver),
                                  TextOf(caller, *offer).c_str(),
                                  caller.Timeout(), &made) != VMMSHARE_OK) {
      return;
    }
    thing = Own(made, vmmshare_fetched_close);
  }
  vmmshare_fetched* const fetched = thing->as<vmmshare_fetched>();
  std::int64_t return_in = 0;
  caller.Do<vmmshare_fetched_lease>(
      caller.Odd(const_cast<const vmmshare_fetched*>(fetched)), &return_in);
  const auto chunk = static_cast<std::uint32_t>(
      caller.Below(vmmshare_fetched_chunks(fetched) + 1));
  vmmshare_raw_handle handle;
  if (caller.Do<vmmshare_fetched_take>(caller.Odd(fetched), chunk, &handle) ==
          VMMSHARE_OK &&
      handle.os_handle >= 0) {
    ::close(static_cast<int>(handle.os_handle));
  }
  if (caller.OneIn(2)) world.fetched.Put(caller.dice(), std::move(thing));
}

void AskBack(Caller& caller) {
  const ThingRef server = caller.world().servers.Look(caller.dice());
  const ThingRef memory = caller.world().memory.Look(caller.dice());
  if (!server || !memory) return;
  vmmshare_server* const of = caller.Odd(server->as<vmmshare_server>());
  const vmmshare_memory* const which = memory->as<vmmshare_memory>();
  const std::int64_t within = caller.Timeout();
  vmmshare_text* text = nullptr;
  switch (caller.Below(6)) {
    case 0:
      caller.Do<vmmshare_server_recall>(of, caller.Odd(which), within);
      return;
    case 1:
      caller.Do<vmmshare_server_recall_all>(
          of, caller.OneIn(2) ? VMMSHARE_FOREVER : within);
      return;
    case 2:
      return CheckText(caller, caller.Do<vmmshare_server_leases>(of, &text),
                       text);
    case 3:
      caller.Do<vmmshare_server_wait_returned>(of, within / 10);
      return;
    case 4:
      return CheckText(
          caller, caller.Do<vmmshare_server_memory_leases>(of, which, &text),
          text);
    default:
      caller.Do<vmmshare_server_wait_memory_returned>(of, which, within / 10);
  }
}

}  // namespace

ThingRef AServer(Caller& caller) {
  ThingRef server = caller.world().servers.Look(caller.dice());
  if (server) return server;
  StartServer(caller);
  return caller.world().servers.Look(caller.dice());
}

std::vector<Operation> SharingOperations() {
  return {{StartServer, 1},
          {ShareMemory, 4},
          {OpenMemory, 5},
          {Fetch, 3},
          {AskBack, 4}};
}

}  // namespace vmm::testing
