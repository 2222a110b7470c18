// What other libraries take an array by: DLPack, __cuda_array_interface__ and NumPy's
// __array__.
#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "vmm/python/core/array.h"
#include "vmm/python/core/dlpack_abi.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// What a capsule owns. `Managed` is DLManagedTensor, with or without version.
template <typename Managed>
struct Export {
  Managed managed;
  std::shared_ptr<Storage> storage;
  // Lengths, then strides.
  std::array<std::int64_t, 8> few;
  std::unique_ptr<std::int64_t[]> many;

  // On any thread, without the GIL.
  static void Delete(Managed* self) {
    delete static_cast<Export*>(self->manager_ctx);
  }
};

// A capsule that nobody took keeps its name.
template <typename Managed>
void DropCapsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <typename Managed>
Managed* Fill(const std::shared_ptr<Storage>& storage, const Layout& layout) {
  auto* made = new Export<Managed>{};
  made->storage = storage;
  const std::size_t dimensions = layout.shape.size();
  std::int64_t* numbers = made->few.data();
  if (2 * dimensions > made->few.size()) {
    made->many.reset(new std::int64_t[2 * dimensions]);
    numbers = made->many.get();
  }
  std::copy(layout.shape.begin(), layout.shape.end(), numbers);
  std::copy(layout.strides.begin(), layout.strides.end(), numbers + dimensions);
  made->managed.manager_ctx = made;
  made->managed.deleter = &Export<Managed>::Delete;
  DLTensor& tensor = made->managed.dl_tensor;
  // Consumers exist that ignore byte_offset, so the pointer has it.
  tensor.data = reinterpret_cast<void*>(storage->address + layout.offset);
  tensor.device = storage->place.device;
  tensor.ndim = static_cast<std::int32_t>(dimensions);
  tensor.dtype = layout.dtype->dlpack;
  tensor.shape = numbers;
  tensor.strides = numbers + dimensions;
  tensor.byte_offset = 0;
  return &made->managed;
}

// The consumer's stream: null for the host, or where nothing is to be ordered.
void* ConsumersStream(nb::handle stream, const DLDevice& device, bool* order) {
  *order = true;
  if (device.device_type == kDLCPU) {
    if (!stream.is_none()) {
      throw nb::value_error("memory of the host has no streams: pass none");
    }
    return nullptr;
  }
  if (stream.is_none()) return LegacyStream();
  const auto value = nb::cast<std::int64_t>(stream);
  if (value == 0) {
    throw nb::value_error(
        "stream 0 is ambiguous in DLPack: 1 is the legacy default stream, 2 "
        "that of each thread");
  }
  if (value == -1) {
    *order = false;
    return nullptr;
  }
  return OneStreamOf(value);
}

// Has the consumer's stream wait for the contents, and the memory for the
// stream.
void Prepare(const Array& array, nb::handle stream) {
  const auto storage = array.storage();
  storage->CheckIsThere();
  bool order = true;
  void* const on = ConsumersStream(stream, storage->place.device, &order);
  if (!order) return;
  array.Order(on);
  if (on != nullptr) storage->UseOn(on);
}

bool WantsVersion(nb::handle max_version) {
  if (max_version.is_none()) return false;
  return nb::cast<std::int64_t>(max_version[0]) >= 1;
}

}  // namespace

nb::object MakeCapsule(const Array& array, nb::handle stream,
                       nb::handle max_version, nb::handle dl_device,
                       nb::handle copy) {
  const auto storage = array.storage();
  const DLDevice device = storage->place.device;
  if (!dl_device.is_none() &&
      (nb::cast<std::int32_t>(dl_device[0]) != device.device_type ||
       nb::cast<std::int32_t>(dl_device[1]) != device.device_id)) {
    throw nb::buffer_error("the array is on another device; copy it there");
  }
  const int copies = PyObject_IsTrue(copy.ptr());  // As numpy.bool is, too.
  if (copies < 0) throw nb::python_error();
  if (copies != 0) {
    throw nb::buffer_error(
        "vmmshare makes no copies; take it without copy=True, and copy then");
  }
  const bool versioned = WantsVersion(max_version);
  if (!versioned && storage->place.readonly) {
    throw nb::buffer_error(
        "the memory is read-only, which DLPack before version 1.0 cannot say. "
        "Use a newer NumPy or PyTorch, or open it with writable=True");
  }
  Prepare(array, stream);
  if (!versioned) return MakePlainCapsule(storage, array.layout());
  return Steal(PyCapsule_New(MakeManaged(storage, array.layout()),
                             kVersionedCapsule, [](PyObject* capsule) {
                               DropCapsule<DLManagedTensorVersioned>(
                                   capsule, kVersionedCapsule);
                             }));
}

DLManagedTensorVersioned* MakeManaged(const std::shared_ptr<Storage>& storage,
                                      const Layout& layout) {
  auto* made = Fill<DLManagedTensorVersioned>(storage, layout);
  made->version = {1, 1};
  made->flags = storage->place.readonly ? kDLFlagReadOnly : 0;
  return made;
}

nb::object MakePlainCapsule(const std::shared_ptr<Storage>& storage,
                            const Layout& layout) {
  return Steal(PyCapsule_New(Fill<DLManagedTensor>(storage, layout), kCapsule,
                             [](PyObject* capsule) {
                               DropCapsule<DLManagedTensor>(capsule, kCapsule);
                             }));
}

nb::object MakeUnflaggedCapsule(const Array& array, nb::handle stream) {
  Prepare(array, stream);
  return MakePlainCapsule(array.storage(), array.layout());
}

nb::dict MakeCudaArrayInterface(const Array& array) {
  const auto storage = array.storage();
  const Place& place = storage->place;
  const DType& dtype = *array.layout().dtype;
  if (place.device.device_type != kDLCUDA || dtype.typestr == nullptr) {
    throw nb::attribute_error(
        place.device.device_type != kDLCUDA
            ? "__cuda_array_interface__: it is memory of the host"
            : "__cuda_array_interface__: it has no such dtype; use DLPack");
  }
  storage->CheckIsThere();
  array.Order(LegacyStream());
  storage->UseOnUnsaid();
  nb::dict interface;
  interface["version"] = 3;
  interface["typestr"] = dtype.typestr;
  interface["shape"] = TupleOf(array.layout().shape);
  interface["strides"] = TupleOf(array.layout().strides, dtype.itemsize());
  interface["data"] = nb::make_tuple(array.address(), place.readonly);
  interface["stream"] = 1;
  return interface;
}

nb::object MakeNumPyArray(const Object<Array>& self, nb::handle dtype,
                          nb::handle copy) {
  const auto& array = nb::cast<const Array&>(self);
  const DLDevice device = array.storage()->place.device;
  if (device.device_type != kDLCPU) {
    throw nb::type_error(
        ("NumPy takes memory of the host, and this is an array of device " +
         std::to_string(device.device_id) +
         ": use it there by torch.from_dlpack(array) or "
         "cupy.from_dlpack(array), or copy it to the host, as "
         "torch.from_dlpack(array).cpu() does")
            .c_str());
  }
  const DType& own = *array.layout().dtype;
  if (own.typestr == nullptr) {
    throw nb::type_error(
        ("NumPy has no dtype " + std::string(own.name) +
         ": use torch.from_dlpack(array), or, where the elements lie side by "
         "side, array.view(array.shape, \"uint" +
         std::to_string(8 * own.itemsize()) + "\") for their bits")
            .c_str());
  }
  const int copies = PyObject_IsTrue(copy.ptr());
  if (copies < 0) throw nb::python_error();
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::object made = numpy.attr("from_dlpack")(self);
  if (!dtype.is_none()) {
    const nb::object wanted = numpy.attr("dtype")(dtype);
    if (!wanted.equal(made.attr("dtype"))) {
      if (copies == 0 && !copy.is_none()) {
        throw nb::value_error(
            ("an array of " + std::string(own.name) + " as " +
             Utf8(nb::str(wanted)) +
             " is a copy, which copy=False forbids: leave copy out, or take it "
             "as it is")
                .c_str());
      }
      return made.attr("astype")(wanted);
    }
  }
  return copies != 0 ? made.attr("copy")("K") : made;
}

}  // namespace vmm::python
