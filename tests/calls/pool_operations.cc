// Pools and their blocks. While a block is live all of it has one byte: what else
// is there somebody wrote who had been given the same memory too early.
#include "platform/base/check.h"
#include "tests/calls/operations.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

void CreatePool(Caller& caller) {
  vmmshare_pool_options options = {};
  options.struct_size = caller.OneIn(40) ? 3 : sizeof(options);
  options.first_segment_size = caller.OneIn(2) ? 0 : 1 + caller.Below(4 << 20);
  if (caller.OneIn(4)) options.max_segment_size = 1 + caller.Below(8 << 20);
  if (caller.OneIn(3)) options.cap = (2ull << 20) * (1 + caller.Below(8));
  if (caller.OneIn(4)) options.flags = VMMSHARE_ON_HOST;
  if (caller.OneIn(10)) options.kinds = VMMSHARE_KIND_LEGACY_IPC;
  if (caller.OneIn(40)) options.flags |= 1u << caller.Below(32);
  const vmmshare_device* device = caller.world().device;
  vmmshare_pool* made = nullptr;
  if (caller.Do<vmmshare_pool_create>(caller.Odd(device), &options, &made) ==
      VMMSHARE_OK) {
    ThingRef pool = Own(made, vmmshare_pool_close);
    // In the order of no stream: what writes to blocks that were freed comes first.
    pool->close = [made, &world = caller.world()] {
      world.real->cuCtxSetCurrent(world.context);
      platform::Check(world.real->cuCtxSynchronize() == CUDA_SUCCESS,
                      "a pool's context has failed");
      vmmshare_pool_close(made);
    };
    caller.world().pools.Put(caller.dice(), std::move(pool));
  }
}

void AllocateIn(Caller& caller, const ThingRef& pool, std::uint64_t size,
                std::uint64_t alignment, CUstream stream) {
  std::uint64_t address = 1;
  const vmmshare_status status = caller.Do<vmmshare_pool_allocate>(
      caller.Odd(pool->as<vmmshare_pool>()), size, alignment,
      static_cast<void*>(stream), &address);
  if (status != VMMSHARE_OK) {
    if (address != 0) caller.Find("a block that was not allocated is there");
    return;
  }
  if (alignment != 0 && address % alignment != 0) {
    caller.Find("a block is not aligned");
  }
  auto block = std::make_shared<Thing>();
  block->address = address;
  block->size = size;
  block->fill = static_cast<std::uint8_t>(1 + caller.Below(255));
  if (stream == AllStreams()) {
    stream = caller.stream();
  }
  block->stream = stream;
  block->keeps = {pool};
  caller.Fill(*block, stream);
  caller.world().blocks.Put(caller.dice(), std::move(block));
}

void Allocate(Caller& caller) {
  const ThingRef pool = caller.world().pools.Look(caller.dice());
  if (!pool) return CreatePool(caller);
  const std::uint64_t size =
      caller.OneIn(30) ? (caller.OneIn(2) ? 0 : ~0ull - 7)
                       : 1 + caller.Below(caller.OneIn(3) ? 900'000 : 9'000);
  const std::uint64_t alignment =
      caller.OneIn(30) ? caller.Below(1000)
                       : (caller.OneIn(2) ? 0 : 1ull << caller.Below(22));
  AllocateIn(caller, pool, size, alignment, caller.AnyStream());
}

void Free(Caller& caller) {
  const ThingRef block = caller.world().blocks.Take(caller.dice());
  if (!block) return;
  caller.CheckFill(*block, "a block that is freed");
  vmmshare_pool* const pool = block->keeps[0]->as<vmmshare_pool>();
  if (caller.OneIn(10) && block->size > 1 &&
      caller.Do<vmmshare_pool_free>(pool, block->address + 1, block->stream) ==
          VMMSHARE_OK) {
    caller.Find("a block was freed by an address within it");
  }
  // Its byte once more, late: the next one who has it comes after that.
  CUstream last =
      caller.OneIn(2) ? static_cast<CUstream>(block->stream) : caller.stream();
  World& world = caller.world();
  world.real->cuMemsetD8Async(block->address, block->fill, block->size, last);
  void* stream = last;
  if (caller.OneIn(6)) {
    world.real->cuStreamSynchronize(last);
    stream = AllStreams();
  }
  if (caller.Do<vmmshare_pool_free>(caller.Odd(pool), block->address, stream) !=
      VMMSHARE_OK) {
    world.real->cuStreamSynchronize(last);
    world.blocks.Put(caller.dice(), block);
  } else if (caller.OneIn(20) &&
             caller.Do<vmmshare_pool_free>(pool, block->address + 1, stream) ==
                 VMMSHARE_OK) {
    caller.Find("what begins nowhere was freed");
  } else if (caller.OneIn(2)) {
    // The same memory, where the pool did not wait for what is late.
    AllocateIn(caller, block->keeps[0], block->size, 0, caller.AnyStream());
  }
}

// The text of a share of `pool`; "" after a failure.
std::string ShareOf(Caller& caller, Thing& pool) {
  const ThingRef server = AServer(caller);
  if (!server) return "";
  vmmshare_share* made = nullptr;
  if (caller.Do<vmmshare_server_share_pool>(
          caller.Odd(server->as<vmmshare_server>()),
          caller.Odd(pool.as<vmmshare_pool>()), &made) != VMMSHARE_OK) {
    return "";
  }
  ThingRef share = Own(made, vmmshare_share_close);
  std::string text = vmmshare_share_text(made);
  caller.world().shares.Put(caller.dice(), std::move(share));
  return text;
}

void Export(Caller& caller) {
  const ThingRef block = caller.world().blocks.Take(caller.dice());
  if (!block) return;
  Thing& pool = *block->keeps[0];
  const std::string text = ShareOf(caller, pool);
  Offer offer = OfferOf(text, block->fill, block->size);
  vmmshare_status status = VMMSHARE_OK;
  if (caller.OneIn(3)) {
    const std::uint64_t inside = block->address + caller.Below(block->size);
    std::uint32_t which = 9;
    std::uint64_t offset = 9;
    std::size_t count = 9;
    status = caller.Do<vmmshare_tickets_around>(
        &inside, std::size_t{1}, offer.ticket.data(), &which, &offset, &count);
    if (status == VMMSHARE_OK &&
        (which != 0 || count != 1 || block->address + offset != inside)) {
      caller.Find("an address has a ticket of another block");
    }
  } else {
    status = caller.Do<vmmshare_pool_tickets>(
        caller.Odd(pool.as<vmmshare_pool>()), &block->address, std::size_t{1},
        offer.ticket.data());
  }
  if (status == VMMSHARE_OK && !text.empty()) {
    Post(caller, Offered::kBlock, offer);
  }
  caller.world().blocks.Put(caller.dice(), block);
}

void CheckStatistics(Caller& caller, const vmmshare_pool* pool) {
  vmmshare_pool_statistics all = {};
  all.struct_size = caller.OneIn(30) ? 5 : sizeof(all);
  if (caller.Do<vmmshare_pool_get_statistics>(pool, &all) != VMMSHARE_OK) {
    return;
  }
  if (all.live + all.held + all.free > all.reserved ||
      all.requested > all.live ||
      all.allocations - all.frees != all.live_blocks) {
    caller.Find("a pool's statistics do not add up");
  }
}

void Look(Caller& caller) {
  const ThingRef block = caller.world().blocks.Take(caller.dice());
  if (!block) return;
  caller.CheckFill(*block, "a block");
  const vmmshare_pool* pool = block->keeps[0]->as<vmmshare_pool>();
  vmmshare_text* text = nullptr;
  int capable = 0;
  std::uint64_t base = 1, size = 1;
  switch (caller.Below(5)) {
    case 0:
      if (caller.Do<vmmshare_pool_find>(
              pool, block->address + caller.Below(block->size), &base, &size) ==
              VMMSHARE_NOT_FOUND ||
          (base != 0 && (base != block->address || size != block->size))) {
        caller.Find("a live block is not found");
      }
      break;
    case 1:
      CheckStatistics(caller, caller.Odd(pool));
      break;
    case 2:
      CheckText(caller,
                caller.Do<vmmshare_pool_weakness>(caller.Odd(pool), &text),
                text);
      break;
    case 3:
      CheckText(
          caller,
          caller.Do<vmmshare_pool_rdma>(caller.Odd(pool), &capable, &text),
          text);
      break;
    default:
      CheckText(caller,
                caller.Do<vmmshare_pool_leases>(caller.Odd(pool), &text), text);
  }
  caller.world().blocks.Put(caller.dice(), block);
}

}  // namespace

std::vector<Operation> PoolOperations() {
  return {{CreatePool, 2}, {Allocate, 14}, {Free, 11}, {Export, 9}, {Look, 7}};
}

}  // namespace vmm::testing
