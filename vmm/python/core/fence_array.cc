// FenceArray: fences in memory that processes share already.
#include <string>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct FenceArray {
  std::shared_ptr<Storage> memory;      // Which each fence keeps, too.
  Holder<vmmshare_fence_array> handle;  // So does this.
};

void CreateArray(FenceArray* self, const Array& array, bool kernels) {
  const std::shared_ptr<Storage> memory = array.storage();
  const Layout& layout = array.layout();
  if (memory->place.device.device_type != kDLCUDA) {
    throw nb::value_error(
        "the array is in memory of the host. Fences of the host come from a "
        "FencePool.");
  }
  if (memory->place.readonly) {
    throw nb::value_error(
        "the array is read-only. Open its memory with writable=True.");
  }
  if (layout.strides != DenseStrides(layout.shape)) {
    throw nb::value_error("the array has gaps. Give all of its memory.");
  }
  const auto on = DeviceOf(nb::int_(memory->place.device.device_id));
  const std::uint64_t address = array.address();
  const auto bytes = static_cast<std::uint64_t>(layout.elements()) *
                     static_cast<std::uint64_t>(layout.dtype->itemsize());
  auto made = Make(&vmmshare_fence_array_close,
                   [&](vmmshare_fence_array** out, vmmshare_error** error) {
                     return (kernels ? &vmmshare_fence_array_create_with_kernels
                                     : &vmmshare_fence_array_create)(
                         on.get(), address, bytes, out, error);
                   });
  new (self) FenceArray{
      memory, Holder<vmmshare_fence_array>(Keeping(memory, std::move(made)))};
}

std::uint64_t SizeOf(const FenceArray& self) {
  return vmmshare_fence_array_size(self.handle.get());
}

Object<Fence> At(const FenceArray& self, std::int64_t index) {
  const auto array = self.handle.shared();
  const auto size = static_cast<std::int64_t>(SizeOf(self));
  if (index < -size || index >= size) {
    throw nb::index_error(("there is no fence " + std::to_string(index) +
                           " of " + std::to_string(size))
                              .c_str());
  }
  const auto at = static_cast<std::uint64_t>(index < 0 ? index + size : index);
  auto fence = Make(&vmmshare_fence_close, [&](vmmshare_fence** made,
                                               vmmshare_error** error) {
    return vmmshare_fence_array_at(array.get(), at, made, error);
  });
  return Give(new Fence{
      nullptr, Holder<vmmshare_fence>(Keeping(self.memory, std::move(fence)))});
}

void Clear(const FenceArray& self, nb::handle timeout) {
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  // On a thread, for each call puts the work on the GPU anew.
  MustOnAThread(
      [array = self.handle.shared(), timeout_ns](vmmshare_error** error) {
        return vmmshare_fence_array_clear(array.get(), timeout_ns, error);
      });
}

}  // namespace

void DefineFenceArray(nb::module_& module) {
  nb::class_<FenceArray> array(
      module, "FenceArray",
      "Fences in device memory that processes share already: fence i is the "
      "same one for all\nthat have the memory, and needs no ticket. For ranks "
      "of a job, SymmetricMemory.array()\nof them; on one machine prefer "
      "FencePool, where the host looks without asking a GPU.");
  array
      .def("__init__", &CreateArray, nb::arg("array"), nb::kw_only(),
           nb::arg("kernels") = false,
           "`array`: all of its bytes become fences, FENCE_BYTES each. Its "
           "memory stays until\nthe last fence has gone: synchronise their "
           "streams first. Make it before streams wait.\nValueError for memory "
           "of the host, read-only memory, gaps; InvalidArgument for a\nnumber "
           "of bytes that is no multiple of FENCE_BYTES; FailedPrecondition "
           "where it is no\nmemory of cuMemCreate().\nkernels: streams wait by "
           "a kernel of one "
           "thread, half as long, while it takes a place\non the GPU. Streams "
           "must be "
           "of the device's primary context, as PyTorch's are, and\nwho "
           "signals must "
           "have a GPU of its own.")
      .def("__len__", &SizeOf)
      .def("__getitem__", &At, nb::arg("index"),
           "The fence, a new object each time.")
      .def("__iter__",
           [](const Object<FenceArray>& self) {
             return Steal<nb::typed<nb::iterator, Fence>>(
                 PySeqIter_New(self.ptr()));
           })
      .def("clear", &Clear, nb::kw_only(), nb::arg("timeout").none() = 10.0,
           "Makes all of them new, of value 0: one process does, before any "
           "uses them.\nAfter DeadlineExceeded the zeros may come yet: call it "
           "again until they have, before the\narray goes. It stands while as "
           "many streams of the process wait as there are hardware\nqueues.");
  DefineClosing(array, "Its fences stay.");
  module.attr("FENCE_BYTES") = static_cast<int>(VMMSHARE_FENCE_BYTES);
}

}  // namespace vmm::python
