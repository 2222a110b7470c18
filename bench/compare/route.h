// Route: one way of sharing GPU memory between two processes, as two halves.
//
// The owner's half makes blocks and says what must travel; the importer's half
// makes them usable from that. Neither half sends anything: the transport is
// the same for all routes.
#ifndef VMMSHARE_BENCH_COMPARE_ROUTE_H_
#define VMMSHARE_BENCH_COMPARE_ROUTE_H_

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/compare/clock.h"
#include "bench/compare/gpu.h"
#include "platform/os/os_handle.h"

namespace bench::compare {

// What travels once, before the first block: an exported pool, an address.
struct Introduction {
  std::vector<std::uint8_t> bytes;
  std::vector<vmm::platform::OsHandle> handles;
};

// What travels for a block: bytes, at most this many, and perhaps a handle.
inline constexpr std::size_t kMaxBlob = 256;
using BlobSpan = absl::Span<std::uint8_t>;

// What travels for a block, at its owner.
struct Outgoing {
  std::array<std::uint8_t, kMaxBlob> blob{};
  std::size_t length = 0;  // Of the blob.
  vmm::platform::OsHandle handle;
};
// And at its importer.
struct Incoming {
  std::uint64_t size = 0;  // Of the block.
  absl::Span<const std::uint8_t> blob;
  vmm::platform::OsHandle handle;
};
// Blocks that are shared together, at most.
inline constexpr std::size_t kLot = 16;

class Owner {
 public:
  virtual ~Owner() = default;
  // Once for each importer.
  virtual absl::StatusOr<Introduction> Introduce() { return Introduction{}; }
  // Thread-safe, as Free() is: a context is current and `stream` the thread's.
  virtual absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) = 0;
  virtual absl::Status Free(const Block& block, CUstream stream) = 0;
  // Writes what must travel to `blob` and answers how many bytes that is.
  virtual absl::StatusOr<std::size_t> Export(
      const Block& block, BlobSpan blob, vmm::platform::OsHandle* handle) = 0;
  // A lot at once: one by one, unless the route has a call for many.
  virtual absl::Status ExportLot(absl::Span<const Block> blocks,
                                 absl::Span<Outgoing> out);
  // Gives the driver back what is kept for later blocks. May be called again
  // when memory is still held (a peer has it).
  virtual absl::Status Trim() { return absl::OkStatus(); }
  // Called before `stream` is destroyed.
  virtual absl::Status Leave(CUstream /*stream*/) { return absl::OkStatus(); }
};

class Importer {
 public:
  virtual ~Importer() = default;
  virtual absl::Status Meet(const Introduction& /*owner*/) {
    return absl::OkStatus();
  }
  // Adds the time of what it does to `steps`, unless that is null.
  virtual absl::StatusOr<Block> Import(std::uint64_t size,
                                       absl::Span<const std::uint8_t> blob,
                                       vmm::platform::OsHandle handle,
                                       Steps* steps) = 0;
  // A lot at once: one by one, unless the route has a call for many.
  virtual absl::Status ImportLot(absl::Span<Incoming> in, Steps* steps,
                                 absl::Span<Block> out);
  virtual absl::Status Close(const Block& block) = 0;
};

struct Route {
  // For flags and JSON, and for people.
  const char* name;
  const char* label;
  // Whether a block takes a handle of the operating system.
  bool sends_handles;
  absl::StatusOr<std::unique_ptr<Owner>> (*own)(Gpu& gpu);
  absl::StatusOr<std::unique_ptr<Importer>> (*import)(Gpu& gpu);
};

// Legacy first: the others are compared with it.
absl::Span<const Route> Routes();
inline constexpr std::size_t kLegacy = 0;
// nullptr when there is none.
const Route* FindRoute(const std::string& name);
std::size_t IndexOf(const Route& route);

namespace routes {
// Each in a file of its own.
extern const Route kLegacyIpc;
extern const Route kStreamPoolIpc;
extern const Route kBareCalls;
extern const Route kDedicated;
extern const Route kPool;
// By who knows that it will be large.
extern const Route kPoolOfGib;
// With a block of the driver's own for each buffer.
extern const Route kLegacyIpcOwnBlock;
// As a careful user writes it: few allocations, each opened once.
extern const Route kLegacyIpcArena;
extern const Route kLegacyIpcCached;
}  // namespace routes

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_ROUTE_H_
