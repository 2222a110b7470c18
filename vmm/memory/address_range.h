// AddressRange: reserved device addresses, with nothing mapped yet.
//
// Reserving costs a microsecond and no memory (16 TiB succeed on H100), so
// reserve what a buffer may grow to and map as it grows.
#ifndef VMMSHARE_VMM_MEMORY_ADDRESS_RANGE_H_
#define VMMSHARE_VMM_MEMORY_ADDRESS_RANGE_H_

#include <cuda.h>

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"

namespace vmm {

struct ReservedRange {
  std::optional<platform::Driver> driver;
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
};

struct ReservedRangeTraits {
  using Value = ReservedRange;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.size != 0; }
  static void Close(const Value& value);
};

// Move-only; const calls are thread-safe. Must outlive every Mapping in it;
// Mapping sees to that.
class AddressRange {
 public:
  // Reserves `size` bytes, a multiple of the device's granularity (2 MiB on
  // H100). `alignment` is 0 (the driver's) or a power of two. `hint` is the
  // wanted address or 0; the driver may choose another, and says nothing then
  // (measured): compare base(). INVALID_ARGUMENT for a size or alignment the
  // driver does not take; RESOURCE_EXHAUSTED when addresses run out.
  static absl::StatusOr<AddressRange> Reserve(const platform::Driver& driver,
                                              std::uint64_t size,
                                              std::uint64_t alignment = 0,
                                              CUdeviceptr hint = 0);

  CUdeviceptr base() const { return range_.get().base; }
  std::uint64_t size() const { return range_.get().size; }
  const platform::Driver& driver() const { return *range_.get().driver; }

 private:
  explicit AddressRange(ReservedRange range)
      : range_(platform::Owned<ReservedRangeTraits>::Adopt(std::move(range))) {}

  platform::Owned<ReservedRangeTraits> range_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_ADDRESS_RANGE_H_
