// What a memory object says of itself.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_LABEL_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_LABEL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vmm::hostdriver {

using Uuid = std::array<std::uint8_t, 16>;

// Lower-case hexadecimal digits, without dashes.
std::string UuidHex(const Uuid& uuid);

struct MemoryLabel {
  enum class Kind : char {
    kDevice = 'd',    // cuMemCreate, on a device.
    kHostNuma = 'n',  // cuMemCreate, on a NUMA node.
    kHost = 'h',      // cuMemCreate, on the host.
    kBlock = 'b',     // cuMemAlloc.
    kPooled = 'p',    // What a pool hands out parts of.
    kPool = 'q',      // No memory: stands for a pool, to share it.
  };

  std::string instance;
  Uuid uuid{};  // Of the device; all zero for host memory.
  Kind kind = Kind::kDevice;
  bool rdma = false;
  std::uint8_t compression = 0;
  // Random; of blocks and pools, by which another process knows that it opened
  // what it meant. 0 for other memory.
  std::uint64_t id = 0;

  // Whether cuMemCreate made it.
  bool IsCreated() const {
    return kind == Kind::kDevice || kind == Kind::kHostNuma ||
           kind == Kind::kHost;
  }
  // Whether the memory counts against the device's budget.
  bool OnDevice() const {
    return kind == Kind::kDevice || kind == Kind::kBlock ||
           kind == Kind::kPooled;
  }
};

// "vmmhost1.<instance>.<uuid>.<kind><rdma><compression>", and "<id>" if any
std::string LabelText(const MemoryLabel& label);
// The label that `text` spells; nullopt for any other text.
std::optional<MemoryLabel> ParseLabel(std::string_view text);
// Whether `text` may name an instance: 1 to 32 of [A-Za-z0-9_-].
bool IsInstanceName(std::string_view text);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_LABEL_H_
