// Pages of this process's own that read as zero and cost nothing before they
// are touched: for tables of which most is never used.
//
// calloc() promises no such thing: once a program has freed as much, the C
// library hands out what it has, and clears it first (16 MiB take 2 to 15 ms).
#ifndef VMMSHARE_PLATFORM_OS_ZEROED_PAGES_H_
#define VMMSHARE_PLATFORM_OS_ZEROED_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"

namespace vmm::platform {

struct ZeroedPagesTraits {
  using Value = absl::Span<std::uint8_t>;
  static Value Nothing() { return {}; }
  static bool Holds(Value value) { return !value.empty(); }
  static void Close(Value value);
};
using ZeroedPages = Owned<ZeroedPagesTraits>;

// At least `size` bytes, aligned to a page. RESOURCE_EXHAUSTED without address
// space, or where the system counts what it may have to give.
// REQUIRES: size > 0.
absl::StatusOr<ZeroedPages> MapZeroedPages(std::size_t size);

// Has the pages under `bytes` be there, all at once: otherwise the first write to
// each waits for the kernel, 1 to 2 us (measured). They are this process's or
// shared, and may be in use. A hint: where the system has no such call (Linux
// before 5.14, Windows) or no memory, nothing happens.
void PopulatePages(absl::Span<std::uint8_t> bytes);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_ZEROED_PAGES_H_
