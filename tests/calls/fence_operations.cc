// Fences of this process, of others, and in memory that is shared. No wait is put on
// a stream without what ends it: a signal from the host, or the fence's end.
#include <algorithm>

#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

void CreatePool(Caller& caller) {
  const vmmshare_device* device = caller.world().device;
  vmmshare_fence_pool* made = nullptr;
  if (caller.Do<vmmshare_fence_pool_create>(caller.Odd(device), &made) !=
      VMMSHARE_OK) {
    return;
  }
  const ThingRef pool = Own(made, vmmshare_fence_pool_close);
  const ThingRef server = AServer(caller);
  vmmshare_share* share = nullptr;
  if (server && caller.Do<vmmshare_server_share_fences>(
                    caller.Odd(server->as<vmmshare_server>()), made, &share) ==
                    VMMSHARE_OK) {
    pool->text = vmmshare_share_text(share);
    caller.world().shares.Put(caller.dice(), Own(share, vmmshare_share_close));
    Post(caller, Offered::kFences, OfferOf(pool->text));
  }
  caller.world().fence_pools.Put(caller.dice(), pool);
}

void OpenPool(Caller& caller) {
  const std::optional<Offer> offer = Read(caller, Offered::kFences);
  if (!offer) return;
  const vmmshare_device* device = caller.world().device;
  const std::string text = TextOf(caller, *offer);
  vmmshare_fence_pool* made = nullptr;
  if (caller.Do<vmmshare_fence_pool_open>(caller.Odd(device), text.c_str(),
                                          caller.Timeout(),
                                          &made) != VMMSHARE_OK) {
    return;
  }
  ThingRef pool = Own(made, vmmshare_fence_pool_close);
  pool->text = text;
  caller.world().imported_fence_pools.Put(caller.dice(), std::move(pool));
}

void Create(Caller& caller) {
  const ThingRef pool = caller.world().fence_pools.Look(caller.dice());
  if (!pool) return CreatePool(caller);
  vmmshare_fence_pool* const of = pool->as<vmmshare_fence_pool>();
  caller.Do<vmmshare_fence_pool_connection>(
      caller.Odd(const_cast<const vmmshare_fence_pool*>(of)));
  vmmshare_fence* made = nullptr;
  if (caller.Do<vmmshare_fence_create>(caller.Odd(of), &made) != VMMSHARE_OK) {
    return;
  }
  ThingRef fence = Own(made, vmmshare_fence_close);
  fence->keeps = {pool};
  Offer offer = OfferOf(pool->text);
  const vmmshare_fence* const its = made;
  if (caller.Do<vmmshare_fence_ticket>(caller.Odd(its), offer.ticket.data()) ==
      VMMSHARE_OK) {
    Post(caller, Offered::kFence, offer);
  }
  caller.world().fences.Put(caller.dice(), std::move(fence));
}

void Open(Caller& caller) {
  std::optional<Offer> offer = Read(caller, Offered::kFence);
  const ThingRef pool = caller.world().imported_fence_pools.Look(caller.dice());
  if (!offer || !pool) return;
  if (caller.OneIn(25)) {
    offer->ticket[caller.Below(VMMSHARE_FENCE_TICKET_BYTES)] ^= 4;
  }
  vmmshare_fence* made = nullptr;
  if (caller.Do<vmmshare_fence_open>(
          caller.Odd(pool->as<vmmshare_fence_pool>()),
          const_cast<const std::uint8_t*>(offer->ticket.data()),
          caller.Timeout(), &made) != VMMSHARE_OK) {
    return;
  }
  ThingRef fence = Own(made, vmmshare_fence_close);
  fence->keeps = {pool};
  caller.world().imported_fences.Put(caller.dice(), std::move(fence));
}

void CreateArray(Caller& caller) {
  vmmshare_memory_options options = {};
  options.struct_size = sizeof(options);
  options.size = 4096;
  const ThingRef memory = MakeMemory(caller, options);
  if (!memory) return;
  const std::uint64_t bytes =
      caller.OneIn(20) ? caller.Below(1000)
                       : VMMSHARE_FENCE_BYTES * (1 + caller.Below(8));
  const vmmshare_device* const device =
      caller.Odd(const_cast<const vmmshare_device*>(caller.world().device));
  vmmshare_fence_array* made = nullptr;
  const vmmshare_status status =
      caller.OneIn(2) ? caller.Do<vmmshare_fence_array_create>(
                            device, memory->address, bytes, &made)
                      : caller.Do<vmmshare_fence_array_create_with_kernels>(
                            device, memory->address, bytes, &made);
  if (status != VMMSHARE_OK) return;
  const ThingRef array = Own(made, vmmshare_fence_array_close);
  array->keeps = {memory};
  if (caller.Do<vmmshare_fence_array_clear>(made, kSecond) != VMMSHARE_OK) {
    return;
  }
  const std::uint64_t size = vmmshare_fence_array_size(made);
  if (size != bytes / VMMSHARE_FENCE_BYTES) {
    caller.Find("an array has another size than it was made with");
  }
  const std::uint64_t index = caller.Below(size + 1);
  vmmshare_fence* fence = nullptr;
  if (caller.Do<vmmshare_fence_array_at>(caller.Odd(made), index, &fence) ==
      VMMSHARE_OK) {
    if (index == size) caller.Find("an array has a fence beyond its end");
    ThingRef thing = Own(fence, vmmshare_fence_close);
    thing->keeps = {memory};
    caller.world().fences.Put(caller.dice(), std::move(thing));
  }
  caller.world().fence_arrays.Put(caller.dice(), array);
}

// Of this process alone: values that only grow.
void Use(Caller& caller) {
  const ThingRef thing = caller.world().fences.Take(caller.dice());
  if (!thing) return;
  vmmshare_fence* const fence = thing->as<vmmshare_fence>();
  std::uint64_t value = 0;
  if (caller.Do<vmmshare_fence_value>(
          caller.Odd(const_cast<const vmmshare_fence*>(fence)), &value) ==
          VMMSHARE_OK &&
      value < thing->value) {
    caller.Find("a fence has come less far than it was signalled");
  }
  const std::uint64_t next = thing->value + 1 + caller.Below(3);
  void* const stream = caller.stream();
  vmmshare_fence* const fences[] = {fence};
  vmmshare_status status = VMMSHARE_CANCELLED;
  switch (caller.Below(5)) {
    case 0:
      status =
          caller.Do<vmmshare_fence_signal>(caller.Odd(fence), stream, next);
      break;
    case 1:
      status = caller.Do<vmmshare_fence_signal_host>(caller.Odd(fence), next);
      break;
    case 2:
      caller.Do<vmmshare_fence_wait>(caller.Odd(fence), stream, next);
      status = caller.Do<vmmshare_fence_signal_host>(fence, next);
      // The stream waits for what does not come.
      if (status != VMMSHARE_OK) vmmshare_fence_abandon(fence, nullptr);
      break;
    case 3:
      status = caller.Do<vmmshare_fence_meet>(
          static_cast<vmmshare_fence* const*>(fences), std::uint64_t{1},
          static_cast<vmmshare_fence* const*>(fences), caller.Below(2), stream,
          next);
      break;
    default:
      caller.Do<vmmshare_fence_add>(caller.Odd(fence), stream,
                                    std::uint64_t{1});
  }
  if (caller.world().real->cuStreamSynchronize(caller.stream()) !=
      CUDA_SUCCESS) {
    caller.Find("a stream has failed");
  }
  if (status == VMMSHARE_OK) thing->value = next;
  caller.world().fences.Put(caller.dice(), thing);
}

void UseImported(Caller& caller) {
  const ThingRef thing = caller.world().imported_fences.Take(caller.dice());
  if (!thing) return;
  vmmshare_fence* const fence = thing->as<vmmshare_fence>();
  std::uint64_t value = 0;
  switch (caller.Below(3)) {
    case 0:
      caller.Do<vmmshare_fence_wait_host>(caller.Odd(fence), caller.Below(10),
                                          caller.Timeout() / 20);
      break;
    case 1:
      caller.Do<vmmshare_fence_value>(
          caller.Odd(const_cast<const vmmshare_fence*>(fence)), &value);
      break;
    default:
      if (caller.OneIn(4)) caller.Do<vmmshare_fence_abandon>(caller.Odd(fence));
  }
  caller.world().imported_fences.Put(caller.dice(), thing);
}

}  // namespace

std::vector<Operation> FenceOperations() {
  return {{CreatePool, 1},  {OpenPool, 2}, {Create, 3},     {Open, 3},
          {CreateArray, 1}, {Use, 5},      {UseImported, 3}};
}

}  // namespace vmm::testing
