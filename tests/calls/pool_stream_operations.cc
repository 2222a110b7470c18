// Pools and the order of streams: what is freed while a stream still writes to it is
// nobody else's until that is done.
#include "absl/time/clock.h"
#include "tests/calls/operations.h"
#include "tests/gpu/held_stream.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kNoAlignment = 0;

// An address of `size` bytes; 0 after a failure.
std::uint64_t AllocateOn(Caller& caller, vmmshare_pool* pool,
                         std::uint64_t size, CUstream stream) {
  std::uint64_t address = 0;
  caller.Do<vmmshare_pool_allocate>(pool, size, kNoAlignment,
                                    static_cast<void*>(stream), &address);
  return address;
}

void FreeWhatIsWrittenTo(Caller& caller) {
  const ThingRef thing = caller.world().pools.Look(caller.dice());
  if (!thing) return;
  const platform::Driver& driver = caller.world().real;
  // There a thread that frees memory of the host waits for the stream that is held,
  // and the call that would let it go on for that thread.
  if (!driver.is_host_memory()) return;
  vmmshare_pool* const pool = thing->as<vmmshare_pool>();
  HeldStream held(Must(Device::ByOrdinal(driver, 0)));
  void* const late = held.get();
  Thing next;
  next.size = 1 + caller.Below(9000);
  next.fill = 1;
  if (const std::uint64_t first =
          AllocateOn(caller, pool, next.size, held.get())) {
    driver->cuMemsetD8Async(first, 2, next.size, held.get());
    const bool is_freed =
        caller.Do<vmmshare_pool_free>(pool, first, late) == VMMSHARE_OK;
    // Of another stream, mostly: memory that was freed has no stream of its own.
    const CUstream other = caller.OneIn(2) ? CU_STREAM_LEGACY : caller.stream();
    next.address = AllocateOn(caller, pool, next.size, other);
    if (next.address != 0) {
      driver->cuMemsetD8Async(next.address, next.fill, next.size, other);
      // It comes before the late one, but where a pool at its cap has this stream
      // wait for that.
      for (int i = 0;
           i < 50 && driver->cuStreamQuery(other) == CUDA_ERROR_NOT_READY;
           ++i) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    held.Release();
    caller.Expect(driver->cuStreamSynchronize(held.get()), "a late fill");
    caller.Expect(driver->cuStreamSynchronize(other), "a fill");
    if (next.address != 0) {
      caller.CheckFill(next, "a block that nobody else has");
      vmmshare_pool_free(pool, next.address, other, nullptr);
    }
    if (!is_freed) vmmshare_pool_free(pool, first, late, nullptr);
  }
  held.Release();
  caller.Do<vmmshare_pool_release_stream>(caller.Odd(pool), late, kSecond);
  // The stream goes, so once without a call that is made to fail.
  if (vmmshare_pool_release_stream(pool, late, 30 * kSecond, nullptr) !=
      VMMSHARE_OK) {
    caller.Find("a stream that has done everything is not released");
  }
}

void Manage(Caller& caller) {
  const ThingRef thing = caller.world().pools.Look(caller.dice());
  if (!thing) return;
  vmmshare_pool* const pool = caller.Odd(thing->as<vmmshare_pool>());
  const std::int64_t timeout = caller.Timeout();
  std::uint64_t freed = 0;
  void* const first = caller.AnyStream();
  void* const then = caller.AnyStream();
  switch (caller.Below(5)) {
    case 0:
      caller.Do<vmmshare_pool_trim>(pool, caller.Below(4 << 20), &freed);
      return;
    case 1:
      caller.Do<vmmshare_pool_release_stream>(pool, first, timeout);
      return;
    case 2:
      caller.Do<vmmshare_pool_order>(pool, first, then, timeout);
      return;
    case 3:
      caller.Do<vmmshare_pool_recall>(
          pool, static_cast<const std::uint64_t*>(nullptr), std::size_t{0},
          timeout);
      return;
    default:
      caller.Do<vmmshare_pool_wait_returned>(
          pool, static_cast<const std::uint64_t*>(nullptr), std::size_t{0},
          timeout / 10);
  }
}

}  // namespace

std::vector<Operation> PoolStreamOperations() {
  return {{FreeWhatIsWrittenTo, 5}, {Manage, 5}};
}

}  // namespace vmm::testing
