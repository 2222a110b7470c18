// Words of 8 bytes in a device's memory, as work of a stream stores them and waits
// for them.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_WORDS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_WORDS_H_

#include <cstdint>

#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {

// All REQUIRE that the lock is held, and are false where the device may not go.

bool StoreWord(State& state, int device, CUdeviceptr address,
               std::uint64_t value);
bool AddToWord(State& state, int device, CUdeviceptr address,
               std::uint64_t value);
// Returns when `condition`, a CU_STREAM_WAIT_VALUE_*, is met, or when work
// of the context must be given up, as after a fault. Lets go of the lock meanwhile.
bool AwaitWord(State& state, Lock& held, const Context& context,
               CUdeviceptr address, std::uint64_t value,
               unsigned int condition);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_WORDS_H_
