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
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/compare/clock.h"
#include "bench/compare/gpu.h"
#include "platform/base/check.h"
#include "platform/os/os_handle.h"

namespace bench::compare {

// What travels once, before the first block: an exported pool, an address.
struct Introduction {
  std::vector<std::uint8_t> bytes;
  std::vector<vmm::platform::OsHandle> handles;
};

// What travels for a block: bytes, at most this many, and perhaps a handle.
inline constexpr std::size_t kMaxBlob = 256;

// What travels for a block, at its owner.
struct Outgoing {
  // Makes `value` the bytes.
  template <typename T>
  void Put(const T& value) {
    static_assert(sizeof(value) <= kMaxBlob);
    std::memcpy(blob.data(), &value, sizeof(value));
    length = sizeof(value);
  }
  std::array<std::uint8_t, kMaxBlob> blob{};
  std::size_t length = 0;  // Of the blob.
  vmm::platform::OsHandle handle;
};
// And at its importer.
struct Incoming {
  // What Put() was given.
  template <typename T>
  T Get() const {
    T value;
    vmm::platform::Check(blob.size() == sizeof(value),
                         "a blob of another route");
    std::memcpy(&value, blob.data(), sizeof(value));
    return value;
  }
  std::uint64_t size = 0;  // Of the block.
  absl::Span<const std::uint8_t> blob;
  vmm::platform::OsHandle handle;
};
// Blocks that are shared together, at most.
inline constexpr std::size_t kLot = 16;

class Owner {
 public:
  using Half = Owner;
  explicit Owner(Gpu& gpu) : gpu_(gpu) {}
  virtual ~Owner() = default;
  // Once for each importer.
  virtual absl::StatusOr<Introduction> Introduce() { return Introduction{}; }
  // Thread-safe, as Free() is: a context is current and `stream` the thread's.
  virtual absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) = 0;
  virtual absl::Status Free(const Block& block, CUstream stream) = 0;
  // Writes what must travel to `out`.
  virtual absl::Status Export(const Block& block, Outgoing* out) = 0;
  // A lot at once: one by one, unless the route has a call for many.
  virtual absl::Status ExportLot(absl::Span<const Block> blocks,
                                 absl::Span<Outgoing> out);
  // Gives the driver back what is kept for later blocks. May be called again
  // when memory is still held (a peer has it).
  virtual absl::Status Trim() { return absl::OkStatus(); }
  // Called before `stream` is destroyed.
  virtual absl::Status Leave(CUstream /*stream*/) { return absl::OkStatus(); }

 protected:
  Gpu& gpu_;
};

class Importer {
 public:
  using Half = Importer;
  explicit Importer(Gpu& gpu) : gpu_(gpu) {}
  virtual ~Importer() = default;
  virtual absl::Status Meet(const Introduction& /*owner*/) {
    return absl::OkStatus();
  }
  // Adds the time of what it does to `steps`, unless that is null.
  virtual absl::StatusOr<Block> Import(Incoming in, Steps* steps) = 0;
  // A lot at once: one by one, unless the route has a call for many.
  virtual absl::Status ImportLot(absl::Span<Incoming> in, Steps* steps,
                                 absl::Span<Block> out);
  virtual absl::Status Close(const Block& block) = 0;

 protected:
  Gpu& gpu_;
};

// A half of a route, where the driver has the optional entries `kNeeded`.
template <typename Made, auto... kNeeded>
absl::StatusOr<std::unique_ptr<typename Made::Half>> Make(Gpu& gpu) {
  if (absl::Status has = gpu.Need<kNeeded...>(); !has.ok()) return has;
  return std::make_unique<Made>(gpu);
}
// One that needs legacy IPC.
template <typename Made>
inline constexpr auto kMakeLegacy =
    &Make<Made, &Cu::cuIpcGetMemHandle, &Cu::cuIpcOpenMemHandle,
          &Cu::cuIpcCloseMemHandle>;

struct Route {
  // For flags and JSON, and for people.
  const char* name;
  const char* label;
  // Whether a block takes a handle of the operating system.
  bool sends_handles;
  absl::StatusOr<std::unique_ptr<Owner>> (*own)(Gpu& gpu);
  absl::StatusOr<std::unique_ptr<Importer>> (*import)(Gpu& gpu);
};

// Those below. Legacy first: the others are compared with it.
absl::Span<const Route* const> Routes();
// nullptr when there is none.
const Route* FindRoute(const std::string& name);
// In Routes(); so a route is called between processes.
std::uint32_t IndexOf(const Route& route);

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
