// Reservations, mappings, and what a device may reach through them.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_ADDRESS_SPACE_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_ADDRESS_SPACE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// A run of bytes that a copy may touch, kept mapped meanwhile.
struct Piece {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<void> keep;
};

// Whether access can be set to `flags`.
bool IsAccess(CUmemAccess_flags flags);
// What the device `ordinal` may do; nothing where that was never set.
CUmemAccess_flags AccessFor(const AccessByDevice& access, int ordinal);

// All of these REQUIRE that the lock is held.

// The mapping that contains `address`, or end().
std::map<CUdeviceptr, Mapping>::iterator MappingAt(State& state,
                                                   CUdeviceptr address);
// The block that contains `address`, or end().
std::map<CUdeviceptr, Block>::iterator BlockAt(State& state,
                                               CUdeviceptr address);
// The pool's segment that contains `address`; null if none does.
std::shared_ptr<Segment> SegmentAt(State& state, CUdeviceptr address);
// The reservation that contains `address`, or end().
std::map<CUdeviceptr, std::size_t>::const_iterator ReservationAt(
    const State& state, CUdeviceptr address);

// When the bytes are looked up. Memory of a pool can be freed before work that
// was submitted earlier uses it, and is there still.
enum class When { kSubmitted, kRunning };

// The bytes [address, address + size) as the device `ordinal` may use them.
// INVALID_VALUE when some are not mapped, or lack the access `needed`.
CUresult Resolve(State& state, CUdeviceptr address, std::size_t size,
                 int ordinal, CUmemAccess_flags needed, When when,
                 std::vector<Piece>* pieces);

// Whether the calling program may use `size` bytes at `data`: false only for
// addresses of the driver's that the CPU cannot read, or, for `write`, write.
bool CpuMayUse(State& state, const void* data, std::size_t size, bool write);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_ADDRESS_SPACE_H_
