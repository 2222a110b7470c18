// Shareable: a view of memory that can be exported. MemoryId: what it is called
// between processes.
//
// Only memory that this process created, or adopted from its creator within
// this process, has one: the driver refuses to export what was imported. So
// ImportedAllocation offers none, and passing memory on is not a runtime
// error but a type error. Who wants to pass memory on keeps the handle that he
// was sent.
#ifndef VMMSHARE_VMM_MEMORY_SHAREABLE_H_
#define VMMSHARE_VMM_MEMORY_SHAREABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"

namespace vmm {

// 128 random bits, drawn once a process: never a pid, which is reused. A forked child
// has its parent's, if that had drawn them.
struct OwnerId {
  std::array<std::uint8_t, 16> bytes{};
  std::string ToString() const;
  friend bool operator==(const OwnerId&, const OwnerId&) = default;
  friend auto operator<=>(const OwnerId&, const OwnerId&) = default;
};

// Numbers are random and not reused while the owner lives. An id names memory
// and opens nothing: see ShareKey (share/ticket.h). The generation grows when the
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

// A view: valid while the Allocation or AdoptedMemory that made it lives and
// is not moved, discarded or remapped.
class Shareable {
 public:
  const Device& device() const { return *device_; }
  const Location& where() const { return *where_; }
  // The kinds as which it can be exported.
  HandleKindSet kinds() const {
    return block_ == nullptr ? memory_->kinds() : HandleKindSet{block_->kind};
  }
  // Of a block: one chunk.
  ChunkLayout layout() const {
    return block_ == nullptr
               ? memory_->layout()
               : ChunkLayout{block_->span.size, block_->span.size};
  }
  // One of the two is null.
  const PhysicalMemory* memory() const { return memory_; }
  const DriverBlock* block() const { return block_; }
  // Of a block that vmmshare made: keeps it from being freed. Else null: handles
  // of VMM keep memory by themselves, and what was adopted its owner keeps.
  const std::shared_ptr<const OwnedMadeBlock>& keeper() const {
    return keeper_;
  }
  const MemoryId& id() const { return id_; }
  std::uint64_t requested_size() const { return requested_size_; }

 private:
  friend class Allocation;
  friend class AdoptedMemory;
  Shareable(const Device& device, const Location& where,
            const PhysicalMemory& memory, const MemoryId& id,
            std::uint64_t requested_size)
      : device_(&device),
        where_(&where),
        memory_(&memory),
        id_(id),
        requested_size_(requested_size) {}
  Shareable(const Device& device, const Location& where,
            const DriverBlock& block, const MemoryId& id)
      : device_(&device),
        where_(&where),
        block_(&block),
        id_(id),
        requested_size_(block.span.size) {}
  Shareable(const Device& device, const Location& where,
            std::shared_ptr<const OwnedMadeBlock> made, const MemoryId& id,
            std::uint64_t requested_size)
      : device_(&device),
        where_(&where),
        block_(&made->get().block),
        keeper_(std::move(made)),
        id_(id),
        requested_size_(requested_size) {}

  const Device* device_;
  const Location* where_;
  const PhysicalMemory* memory_ = nullptr;
  const DriverBlock* block_ = nullptr;
  std::shared_ptr<const OwnedMadeBlock> keeper_;
  MemoryId id_;
  std::uint64_t requested_size_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_SHAREABLE_H_
