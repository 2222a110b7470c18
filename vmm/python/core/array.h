// Array: a typed view of memory, which DLPack's consumers see.
#ifndef VMMSHARE_VMM_PYTHON_CORE_ARRAY_H_
#define VMMSHARE_VMM_PYTHON_CORE_ARRAY_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "vmm/c/fence.h"
#include "vmm/python/core/layout.h"
#include "vmm/python/core/object.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

class Array {
 public:
  Array(std::shared_ptr<Storage> storage, Layout layout)
      : storage_(std::move(storage)), layout_(std::move(layout)) {}

  // The storage; raises when the array was closed, or is the parent's.
  // A copy: another thread may close the array while this one waits.
  std::shared_ptr<Storage> storage() const;
  const Layout& layout() const { return layout_; }
  std::uint64_t address() const { return storage()->address + layout_.offset; }

  // Contents are complete once `fence` has reached `value`: whoever takes the
  // array waits for that, on its stream if it has one. `pool` is the fence's, by
  // which the host learns that nobody signals it any more; null for one of an
  // array of fences.
  void After(std::shared_ptr<vmmshare_fence> fence,
             std::shared_ptr<vmmshare_fence_pool> pool, std::uint64_t value);
  // Makes `stream` wait for that; a null one is the host.
  void Order(void* stream) const;
  // This thread waits for it, so long at most. Raises as WaitForFence().
  void Await(std::int64_t timeout_ns) const;

  // The same memory as another array, complete at the same time.
  Array View(Layout layout) const;

  void Close() { storage_.reset(); }
  bool is_closed() const { return storage_ == nullptr; }
  // Of one that is not closed.
  bool is_the_parents() const { return !storage_->made.is_still_here(); }

 private:
  std::shared_ptr<Storage> storage_;
  Layout layout_;
  std::shared_ptr<vmmshare_fence_pool> fence_pool_;
  std::shared_ptr<vmmshare_fence> fence_;  // Goes before its pool.
  std::uint64_t fence_value_ = 0;
};

// A new Python object.
Object<Array> MakeArray(std::shared_ptr<Storage> storage, Layout layout);
// Row-major, from `offset` bytes of `storage` on. ValueError when it would leave that.
Object<Array> ArrayIn(std::shared_ptr<Storage> storage, nanobind::handle shape,
                      nanobind::handle dtype, std::uint64_t offset);

// The block of an own pool that it lies in; raises for another array.
const PoolBlock& CheckHasTicket(const Array& array);

// What a consumer of DLPack takes over, of all versions from 1 on.
DLManagedTensorVersioned* MakeManaged(const std::shared_ptr<Storage>& storage,
                                      const Layout& layout);
// The capsule of a version before that, which cannot say that the memory is
// read-only.
nanobind::object MakePlainCapsule(const std::shared_ptr<Storage>& storage,
                                  const Layout& layout);
// DLPack's capsule of `array`, of the newest version up to `max_version`.
nanobind::object MakeCapsule(const Array& array, nanobind::handle stream,
                             nanobind::handle max_version,
                             nanobind::handle dl_device, nanobind::handle copy);
// The plain one, for a consumer that never writes.
nanobind::object MakeUnflaggedCapsule(const Array& array,
                                      nanobind::handle stream);

// For __cuda_array_interface__: AttributeError for memory of the host, or a dtype that
// it does not name.
nanobind::dict MakeCudaArrayInterface(const Array& array);

// NumPy's array of the same memory, for its __array__: a copy where `copy` is true
// or `dtype` is another. TypeError where NumPy cannot look at the memory.
nanobind::object MakeNumPyArray(const Object<Array>& self,
                                nanobind::handle dtype, nanobind::handle copy);

void DefineArray(nanobind::module_& module);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_ARRAY_H_
