// Pools of others and blocks in them: a block keeps its contents until it is closed
// here, whatever its owner does meanwhile.
#include <algorithm>
#include <array>

#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kTicket = VMMSHARE_BLOCK_TICKET_BYTES;

ThingRef Open(Caller& caller, const Offer& offer) {
  const std::string text = TextOf(caller, offer);
  const vmmshare_import_options options = AnyImportOptions(caller);
  const vmmshare_driver* driver = caller.world().driver;
  vmmshare_imported_pool* made = nullptr;
  if (caller.Do<vmmshare_imported_pool_open>(caller.Odd(driver), text.c_str(),
                                             &options, caller.Timeout(),
                                             &made) != VMMSHARE_OK) {
    return nullptr;
  }
  ThingRef pool = Own(made, vmmshare_imported_pool_close);
  pool->text = text;
  pool->is_writable = (options.flags & VMMSHARE_IMPORT_WRITABLE) != 0;
  caller.world().imported_pools.Put(caller.dice(), pool);
  return pool;
}

// One that is open already, if dice find it.
ThingRef PoolOf(Caller& caller, const Offer& offer) {
  for (int i = 0; i < 8; ++i) {
    ThingRef pool = caller.world().imported_pools.Look(caller.dice());
    if (pool && pool->text == offer.text.data()) return pool;
  }
  return Open(caller, offer);
}

void Import(Caller& caller) {
  std::optional<Offer> offer = Read(caller, Offered::kBlock);
  if (!offer) return;
  const ThingRef pool = PoolOf(caller, *offer);
  if (!pool) return;
  std::array<std::uint8_t, 2 * kTicket> tickets;
  std::copy_n(offer->ticket.data(), kTicket, tickets.data());
  std::copy_n(offer->ticket.data(), kTicket, tickets.data() + kTicket);
  const bool is_spoilt = caller.OneIn(25);
  const std::size_t count = 1 + caller.Below(2);
  if (is_spoilt) tickets[caller.Below(kTicket)] ^= 1 << caller.Below(8);
  std::array<vmmshare_block*, 2> made{};
  const vmmshare_status status = caller.Do<vmmshare_imported_pool_import>(
      caller.Odd(pool->as<vmmshare_imported_pool>()),
      const_cast<const std::uint8_t*>(tickets.data()), count, caller.Timeout(),
      made.data());
  if (status != VMMSHARE_OK) {
    if (made[1] != nullptr) caller.Find("of two blocks one was imported");
    return;
  }
  if (is_spoilt) caller.Find("a block was imported by a damaged ticket");
  for (std::size_t i = 0; i < count; ++i) {
    ThingRef block = Own(made[i], vmmshare_block_close);
    block->address = vmmshare_block_address(made[i]);
    block->size = vmmshare_block_size(made[i]);
    block->fill = offer->fill;
    block->is_writable = pool->is_writable;
    if (!is_spoilt && block->size != offer->size) {
      caller.Find("a block was imported with another size than it has");
    }
    caller.CheckFill(*block, "a block that was imported");
    caller.world().imported_blocks.Put(caller.dice(), std::move(block));
  }
}

void LookAtBlock(Caller& caller) {
  const ThingRef block = caller.world().imported_blocks.Take(caller.dice());
  if (!block) return;
  caller.CheckFill(*block, "another process's block");
  caller.world().imported_blocks.Put(caller.dice(), block);
}

void CloseAfterStream(Caller& caller) {
  const ThingRef block = caller.world().imported_blocks.Take(caller.dice());
  if (!block) return;
  const CUstream stream =
      caller.OneIn(4) ? caller.world().streams[0] : caller.stream();
  caller.CheckFill(*block, "another process's block");
  // Its byte once more, late: the owner may have it back after that.
  if (block->is_writable) {
    caller.world().real->cuMemsetD8Async(block->address, block->fill,
                                         block->size, stream);
  }
  if (caller.Do<vmmshare_block_close_after>(
          caller.Odd(block->as<vmmshare_block>()),
          static_cast<void*>(stream)) == VMMSHARE_OK) {
    block->close = nullptr;
  } else {
    caller.world().real->cuStreamSynchronize(stream);
  }
}

void LookAtPool(Caller& caller) {
  const ThingRef thing = caller.world().imported_pools.Look(caller.dice());
  if (!thing) return;
  const vmmshare_imported_pool* const pool =
      caller.Odd(thing->as<const vmmshare_imported_pool>());
  vmmshare_text* text = nullptr;
  std::array<std::uint64_t, 4> addresses;
  std::size_t count = 0;
  std::uint64_t seen = 0;
  switch (caller.Below(4)) {
    case 0:
      caller.Do<vmmshare_imported_pool_connection>(pool);
      return;
    case 1:
      return CheckText(caller,
                       caller.Do<vmmshare_imported_pool_weakness>(pool, &text),
                       text);
    case 2:
      caller.Do<vmmshare_imported_pool_recalled>(
          pool, addresses.data(), std::size_t{caller.Below(5)}, &count);
      return;
    default:
      caller.Do<vmmshare_imported_pool_wait_recalled>(pool, &seen,
                                                      caller.Timeout() / 20);
  }
}

}  // namespace

std::vector<Operation> ImportedPoolOperations() {
  return {
      {Import, 14}, {LookAtBlock, 6}, {CloseAfterStream, 5}, {LookAtPool, 3}};
}

}  // namespace vmm::testing
