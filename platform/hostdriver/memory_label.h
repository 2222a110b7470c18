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

// Of memory that fabric handles name: what decides who may import it.
struct FabricPlace {
  // With MemoryLabel::id, the 128 random bits in the handle.
  std::uint64_t key = 0;
  Uuid cluster{};  // Of the device that has the memory.
  std::uint32_t clique = 0;
  std::uint32_t channel = 0;  // The IMEX channel that its maker could open.
};

struct MemoryLabel {
  enum class Kind : char {
    kDevice = 'd',    // cuMemCreate, on a device.
    kFabric = 'f',    // The same, with fabric handles.
    kHostNuma = 'n',  // cuMemCreate, on a NUMA node.
    kHost = 'h',      // cuMemCreate, on the host.
    kBlock = 'b',     // cuMemAlloc.
    kPooled = 'p',    // What a pool hands out parts of.
    kPool = 'q',      // No memory: stands for a pool, to share it.
  };

  std::string instance;  // And node: Config::machine.
  Uuid uuid{};           // Of the device; all zero for host memory.
  Kind kind = Kind::kDevice;
  bool rdma = false;
  std::uint8_t compression = 0;
  // Random; of blocks, pools and memory with fabric handles, by which another
  // process knows that it opened what it meant. 0 for other memory.
  std::uint64_t id = 0;
  FabricPlace fabric;  // Of kFabric.

  // Whether cuMemCreate made it.
  bool IsCreated() const {
    return kind == Kind::kDevice || kind == Kind::kFabric ||
           kind == Kind::kHostNuma || kind == Kind::kHost;
  }
  // Whether the memory counts against the device's budget.
  bool OnDevice() const {
    return kind == Kind::kDevice || kind == Kind::kFabric ||
           kind == Kind::kBlock || kind == Kind::kPooled;
  }
};

// "vmmhost1.<instance>.<uuid>.": how the labels of a device's memory begin. The
// kind follows.
std::string LabelPrefix(std::string_view instance, const Uuid& uuid);
// "vmmhost1.<machine>.<uuid>.<kind><rdma><compression>", and "<id>" if any, and
// "<key><cluster><clique><channel>" for kFabric.
std::string LabelText(const MemoryLabel& label);
// The label that `text` spells; nullopt for any other text.
std::optional<MemoryLabel> ParseLabel(std::string_view text);
// Whether `text` may name an instance, or a node: 1 to 32 of [A-Za-z0-9_-].
bool IsInstanceName(std::string_view text);
// The instance of which `machine` is a node.
std::string_view InstanceOf(std::string_view machine);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_LABEL_H_
