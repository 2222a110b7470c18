// MemoryId: what an allocation is called between processes.
#ifndef VMMSHARE_VMM_MEMORY_MEMORY_ID_H_
#define VMMSHARE_VMM_MEMORY_MEMORY_ID_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace vmm {

// 128 random bits, drawn once a process: never a pid, which is reused.
struct OwnerId {
  std::array<std::uint8_t, 16> bytes{};
  std::string ToString() const;
  friend bool operator==(const OwnerId&, const OwnerId&) = default;
  friend auto operator<=>(const OwnerId&, const OwnerId&) = default;
};

// Numbers are random and not reused while the owner lives. An id names memory
// and opens nothing: see ShareKey (share/servable.h). The generation grows when the
// allocation's memory is replaced, so that a ticket to the old memory is
// refused and never resolves to the new. A value.
struct MemoryId {
  OwnerId owner;
  std::uint64_t number = 0;
  std::uint32_t generation = 0;
  std::string ToString() const;
  friend bool operator==(const MemoryId&, const MemoryId&) = default;
  friend auto operator<=>(const MemoryId&, const MemoryId&) = default;
};

// A new id, generation 1, owned by this process. Thread-safe. Fails as the
// operating system's source of random bytes does.
absl::StatusOr<MemoryId> NewMemoryId();

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_MEMORY_ID_H_
