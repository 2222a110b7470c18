// What the classes of the module hold. A shared handle is closed when the last
// object that needs it goes.
#ifndef VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_
#define VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "vmm/c/vmmshare.h"
#include "vmm/python/core/holder.h"
#include "vmm/python/core/object.h"
#include "vmm/python/core/pool_closers.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

// The driver that is used where none is named: set_driver()'s, or else the
// system's, which is loaded by the first call that needs it.
std::shared_ptr<vmmshare_driver> DefaultDriver();

// Of a Device, an ordinal, or the text of a UUID.
std::shared_ptr<vmmshare_device> DeviceOf(nanobind::handle device);

// Every one that this process sees, by ordinal.
std::vector<std::shared_ptr<vmmshare_device>> AllDevices();

// The first half of its UUID, which is another one for each device, and not 0.
std::uint64_t MarkOf(const vmmshare_device* device);

struct Driver {
  Holder<vmmshare_driver> handle;
};
struct Device {
  Holder<vmmshare_device> handle;
};
struct Allocation {
  Holder<vmmshare_memory> handle;
  bool readonly = false;
  int opened_for = -1;  // As of Locate().
  // That shared it; some may be gone.
  std::vector<std::weak_ptr<vmmshare_server>> servers = {};
  std::vector<std::shared_ptr<vmmshare_server>> Servers() const;
};
struct Server {
  Holder<vmmshare_server> handle;
};
struct Pool {
  Holder<vmmshare_pool> handle;
  bool on_host = false;
  int device = 0;
};
struct FencePool {
  Holder<vmmshare_fence_pool> handle;
};
struct Fence {
  // Its pool too, which may have been kept by this alone: other processes are
  // told when that goes, and wait no more.
  void Close() {
    handle.Close();
    if (pool != nullptr) LetGo(std::move(pool));
  }

  std::shared_ptr<vmmshare_fence_pool> pool;  // Null: of an array.
  // Goes before its pool, and of an array keeps the memory: it waits for what the
  // GPU writes there.
  Holder<vmmshare_fence> handle;
  mutable std::mutex signalling = {};  // Held without the GIL.
};

// This thread waits until `fence` has reached `value`, so long at most. Raises
// Unavailable once the owner of `pool`, which it is of, serves it no more. A fence
// of an array has none: null, and its wait ends by `timeout_ns` alone.
void WaitForFence(vmmshare_fence* fence, const vmmshare_fence_pool* pool,
                  std::uint64_t value, std::int64_t timeout_ns);

// Where what is at `address` is used, as the driver says; raises for what no array
// can be made of.
struct Located {
  bool on_host = false;
  int device = 0;          // Whose kernels reach it.
  std::uint64_t base = 0;  // Of the range around it.
  std::uint64_t size = 0;
};
// `opened_for`: the ordinal of the device for which it was opened, if one was
// named. Of cuMemCreate()'s memory the driver knows it too, of others' it need not.
Located Locate(const vmmshare_driver* driver, std::uint64_t address,
               int opened_for = -1);

// Of another process's memory: seconds until it is to be given back, none while
// nobody asks for it. Raises once the owner has ended.
std::optional<double> RecalledIn(const vmmshare_memory* memory);

void DefineDriver(nanobind::module_& module);
void DefineMemory(nanobind::module_& module);
void DefinePool(nanobind::module_& module);
void DefineRemotePool(nanobind::module_& module);
void DefineServer(nanobind::module_& module);
void DefineReads(nanobind::module_& module);
void DefineRestorable(nanobind::module_& module);
void DefineRegion(nanobind::module_& module);
void DefineFence(nanobind::module_& module);
void DefineFenceArray(nanobind::module_& module);
void DefineMeet(nanobind::module_& module);
void DefineFetched(nanobind::module_& module);
void DefineRdma(nanobind::module_& module);
void DefineKeeper(nanobind::module_& module);
void DefineHooks(nanobind::module_& module);
void DefineRing(nanobind::module_& module);
void DefineSafetensors(nanobind::module_& module);
void DefineSymmetric(nanobind::module_& module);
void DefineWeights(nanobind::module_& module);
void DefineWeightsLayout(nanobind::module_& module);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_
