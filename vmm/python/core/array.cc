#include "vmm/python/core/array.h"

#include "vmm/python/core/error.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/shape.h"

namespace nb = nanobind;

namespace vmm::python {

std::shared_ptr<Storage> Array::storage() const {
  if (storage_ == nullptr) {
    Raise(VMMSHARE_FAILED_PRECONDITION, "the array was closed",
          "Use it before close(), or before its `with` block ends.");
  }
  storage_->made.CheckStillHere();
  return storage_;
}

Array Array::View(Layout layout) const {
  Array view = *this;
  view.layout_ = std::move(layout);
  return view;
}

const PoolBlock& CheckHasTicket(const Array& array) {
  const auto* block = dynamic_cast<const PoolBlock*>(array.storage().get());
  if (block == nullptr) {
    Raise(VMMSHARE_FAILED_PRECONDITION,
          "only an array of this process's own pool has a ticket",
          "Make it by Pool.empty(), or pass the ticket on that it was opened "
          "with.");
  }
  return *block;
}

void Array::After(std::shared_ptr<vmmshare_fence> fence,
                  std::shared_ptr<vmmshare_fence_pool> pool,
                  std::uint64_t value) {
  fence_ = std::move(fence);
  fence_pool_ = std::move(pool);
  fence_value_ = value;
}

void Array::Order(void* stream) const {
  if (fence_ == nullptr) return;
  if (stream != nullptr) {
    // As Fence.wait(): it may wait for a place on the stream.
    MustWithoutGil(
        [fence = fence_, value = fence_value_, stream](vmmshare_error** error) {
          return vmmshare_fence_wait(fence.get(), stream, value, error);
        });
    return;
  }
  Await(VMMSHARE_FOREVER);
}

void Array::Await(std::int64_t timeout_ns) const {
  if (fence_ == nullptr) return;
  WaitForFence(fence_.get(), fence_pool_.get(), fence_value_, timeout_ns);
}

Object<Array> MakeArray(std::shared_ptr<Storage> storage, Layout layout) {
  return Give(new Array(std::move(storage), std::move(layout)));
}

Object<Array> ArrayIn(std::shared_ptr<Storage> storage, nb::handle shape,
                      nb::handle dtype, std::uint64_t offset) {
  Layout layout = DenseLayout(shape, dtype, offset);
  CheckWithin(layout, storage->size);
  return MakeArray(std::move(storage), std::move(layout));
}

}  // namespace vmm::python
