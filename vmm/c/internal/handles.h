// What the opaque types of the C interface are.
//
// A handle holds what it was made from, so that they may be closed in any
// order.
#ifndef VMMSHARE_VMM_C_INTERNAL_HANDLES_H_
#define VMMSHARE_VMM_C_INTERNAL_HANDLES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/process.h"
#include "vmm/c/internal/handle.h"
#include "vmm/keeper/keeper.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"

struct vmmshare_driver : vmm::c::Handle<vmm::c::HandleType::kDriver> {
  explicit vmmshare_driver(vmm::platform::Driver loaded)
      : driver(std::move(loaded)), description(driver.Describe()) {}
  const vmm::platform::Driver driver;
  const std::string description;
};

struct vmmshare_device : vmm::c::Handle<vmm::c::HandleType::kDevice> {
  explicit vmmshare_device(vmm::Device found)
      : device(std::move(found)), uuid(device.uuid().ToString()) {}
  const vmm::Device device;
  const std::string uuid;
};

struct vmmshare_memory : vmm::c::Handle<vmm::c::HandleType::kMemory> {
  // Memory that somebody else made, and where that has it. Asked by the same
  // names as the others are.
  struct Adopted {
    CUdeviceptr address() const { return at; }
    std::uint64_t size() const { return bytes; }
    std::uint64_t requested_size() const { return bytes; }
    std::string weakness() const { return memory.weakness(); }
    vmm::AddressSpan disclosed() const { return memory.disclosed(); }

    vmm::AdoptedMemory memory;
    CUdeviceptr at;
    std::uint64_t bytes;
  };
  using Any = std::variant<vmm::Allocation, Adopted, vmm::ImportedAllocation>;
  explicit vmmshare_memory(Any any)
      : held(std::make_shared<const Any>(std::move(any))), memory(*held) {}
  // Also by tensor sets in it and their writers.
  const std::shared_ptr<const Any> held;
  const Any& memory;
  // From a write of 0 bytes to the next one: what that has put on a stream would end
  // with its context.
  mutable vmm::platform::Mutex mutex;
  mutable std::optional<vmm::PrimaryContext> primary ABSL_GUARDED_BY(mutex);
};

struct vmmshare_pool : vmm::c::Handle<vmm::c::HandleType::kPool> {
  explicit vmmshare_pool(std::shared_ptr<vmm::Pool> made)
      : pool(std::move(made)) {}
  const std::shared_ptr<vmm::Pool> pool;
};

namespace vmm::c {

// How a pool of another process ends for who has it last. That waits for the GPU,
// for the pool's threads and for its owner, and calls the driver. Who gives a block
// back does none of it: it is done on a thread of its own.
class ImportedPoolEnd {
 public:
  void operator()(vmm::ImportedPool* pool) const noexcept;

  // It ends in who calls this. REQUIRES: nobody else has the pool.
  void BeHere() { is_here_ = true; }

 private:
  platform::MadeHere made_;
  bool is_here_ = false;
};

}  // namespace vmm::c

struct vmmshare_imported_pool
    : vmm::c::Handle<vmm::c::HandleType::kImportedPool> {
  // Told by a thread of the pool's; may outlive the handle.
  struct Events {
    vmm::platform::Mutex mutex;
    vmm::platform::CondVar changed;
    std::uint64_t recalls ABSL_GUARDED_BY(mutex) = 0;
    absl::Status ended ABSL_GUARDED_BY(mutex);
  };
  explicit vmmshare_imported_pool(std::unique_ptr<vmm::ImportedPool> opened)
      : pool(opened.release(), vmm::c::ImportedPoolEnd()) {}
  const std::shared_ptr<vmm::ImportedPool> pool;
  const std::shared_ptr<Events> events = std::make_shared<Events>();
};

struct vmmshare_block : vmm::c::Handle<vmm::c::HandleType::kBlock> {
  vmmshare_block(std::shared_ptr<vmm::ImportedPool> from,
                 vmm::ImportedBlock imported)
      : pool(std::move(from)), block(std::move(imported)) {}
  // The block goes before its pool.
  const std::shared_ptr<vmm::ImportedPool> pool;
  vmm::ImportedBlock block;
};

struct vmmshare_fence_pool : vmm::c::Handle<vmm::c::HandleType::kFencePool> {
  using Any = std::variant<std::shared_ptr<vmm::FencePool>,
                           std::shared_ptr<vmm::ImportedFencePool>>;
  explicit vmmshare_fence_pool(Any any) : pool(std::move(any)) {}
  const Any pool;
};

struct vmmshare_fence_array : vmm::c::Handle<vmm::c::HandleType::kFenceArray> {
  explicit vmmshare_fence_array(std::unique_ptr<vmm::FenceArray> made)
      : array(std::move(made)) {}
  const std::unique_ptr<vmm::FenceArray> array;
};

struct vmmshare_fence : vmm::c::Handle<vmm::c::HandleType::kFence> {
  vmmshare_fence(std::optional<vmmshare_fence_pool::Any> from, vmm::Fence made)
      : pool(std::move(from)), fence(std::move(made)) {}
  // None: of an array, which has no tickets.
  const std::optional<vmmshare_fence_pool::Any> pool;
  vmm::Fence fence;
};

struct vmmshare_server : vmm::c::Handle<vmm::c::HandleType::kServer> {
  explicit vmmshare_server(std::shared_ptr<vmm::Endpoint> started)
      : endpoint(std::move(started)) {}
  const std::shared_ptr<vmm::Endpoint> endpoint;
};

struct vmmshare_share : vmm::c::Handle<vmm::c::HandleType::kShare> {
  explicit vmmshare_share(vmm::Share made) : share(std::move(made)) {}
  const vmm::Share share;
};

struct vmmshare_channel : vmm::c::Handle<vmm::c::HandleType::kChannel> {
  explicit vmmshare_channel(vmm::platform::Channel connected)
      : channel(std::move(connected)) {}
  vmm::platform::Channel channel;
};

struct vmmshare_keeper : vmm::c::Handle<vmm::c::HandleType::kKeeper> {
  explicit vmmshare_keeper(vmm::KeeperClient connected)
      : keeper(std::move(connected)) {}
  vmm::KeeperClient keeper;
};

#endif  // VMMSHARE_VMM_C_INTERNAL_HANDLES_H_
