#include "vmm/python/core/foreign.h"

#include <nanobind/stl/string.h>

#include <string>

#include "vmm/python/core/dtype.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

constexpr char kMasked[] =
    "it is masked, and a mask is not shared: fill it (fillna(), filled()) "
    "first";

[[noreturn]] void Refuse(const std::string& which, const std::string& why) {
  throw nb::value_error((which + ": " + why).c_str());
}

[[noreturn]] void RefuseDType(const std::string& which,
                              const std::string& dtype) {
  throw nb::type_error(
      (which + ": no ticket names its type, " + dtype + kPassAsBytes).c_str());
}

// Whether it is NumPy's with a mask, of which its DLPack says nothing.
bool IsMasked(nb::handle object) {
  // Who has one has imported it.
  const nb::object masked =
      nb::steal(PyImport_GetModule(nb::str("numpy.ma").ptr()));
  if (!masked.is_valid()) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return false;
  }
  const nb::object type = nb::getattr(masked, "MaskedArray", nb::none());
  return !type.is_none() && nb::isinstance(object, type);
}

// A capsule of whichever version the library makes. The null stream waits for
// nothing; -1 is how a consumer says so for a device.
nb::object CapsuleOf(nb::handle object, const DLDevice& device) {
  nb::dict how;
  if (device.device_type == kDLCUDA) how["stream"] = -1;
  const nb::object make = object.attr("__dlpack__");
  how["max_version"] = nb::make_tuple(1, 0);
  try {
    return make(**how);
  } catch (nb::python_error& raised) {
    // Of before DLPack 1.0, which does not know the word; or JAX, which takes -1
    // for a stream (observed, 0.11).
    const bool knows_the_word = !raised.matches(PyExc_TypeError);
    if (knows_the_word && device.device_type != kDLCUDA) throw;
    nb::del(how[knows_the_word ? "stream" : "max_version"]);
  }
  return make(**how);
}

const DLTensor* TensorOf(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedCapsule) != 0) {
    const auto* managed = static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), kVersionedCapsule));
    return managed->version.major == 1 ? &managed->dl_tensor : nullptr;
  }
  if (PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0) return nullptr;
  return &static_cast<const DLManagedTensor*>(
              PyCapsule_GetPointer(capsule.ptr(), kCapsule))
              ->dl_tensor;
}

// By the dictionary, which Numba and RMM have and nothing else.
std::uint64_t ReadInterface(const std::string& which, nb::handle interface,
                            Layout* layout) {
  const auto typestr = nb::cast<std::string>(interface["typestr"]);
  layout->dtype = FindDTypeOfTypestr(typestr);
  if (layout->dtype == nullptr) RefuseDType(which, typestr);
  const nb::object mask = interface.attr("get")("mask");
  if (!mask.is_none()) Refuse(which, kMasked);
  layout->shape.clear();
  for (const nb::handle length : interface["shape"]) {
    layout->shape.push_back(Int64Of(length));
  }
  const nb::object strides =
      nb::cast<nb::object>(interface.attr("get")("strides"));
  layout->strides.clear();
  if (strides.is_none()) {
    if (!DenseBytes(layout->shape, layout->dtype->itemsize()).has_value()) {
      Refuse(which, "its shape overflows");
    }
    layout->strides = DenseStrides(layout->shape);
  } else {
    for (const nb::handle stride : strides) {
      const std::int64_t bytes = Int64Of(stride);
      if (bytes % layout->dtype->itemsize() != 0) {
        Refuse(which, "its strides are no multiples of its elements");
      }
      layout->strides.push_back(bytes / layout->dtype->itemsize());
    }
  }
  return nb::cast<std::uint64_t>(interface["data"][0]);
}

// Raises what the array's library raised anew, of the same type and from it, with
// `which` before its text: of many arrays the program is to know which one it was.
// What is of a type of the library's own says more by that, and passes as it is.
void RaiseNamed(const std::string& which, nb::python_error& raised) {
  for (PyObject* const type :
       {PyExc_BufferError, PyExc_KeyError, PyExc_TypeError, PyExc_ValueError}) {
    if (raised.type().ptr() != type) continue;
    const std::string text = which + ": " + Utf8(nb::str(raised.value()));
    nb::raise_from(raised, type, "%s", text.c_str());
  }
}

// As ReadForeign(), but for what the object's library raises.
std::uint64_t AskForeign(const std::string& which, nb::handle object,
                         Layout* layout, DLDevice* device, nb::object* kept) {
  std::uint64_t address = 0;
  layout->offset = 0;
  // PyTorch hands these out all the same, and refuses lazy conjugates itself.
  if (nb::hasattr(object, "is_neg") &&
      nb::cast<bool>(object.attr("is_neg")())) {
    Refuse(which, "it is a lazy negative: share its resolve_neg()");
  }
  if (IsMasked(object)) Refuse(which, kMasked);
  if (nb::hasattr(object, "__dlpack__")) {
    const nb::object on = object.attr("__dlpack_device__")();
    *device = {static_cast<std::int32_t>(Int64Of(nb::int_(on[0]))),
               static_cast<std::int32_t>(Int64Of(on[1]))};
    const nb::object capsule = CapsuleOf(object, *device);
    const DLTensor* tensor = TensorOf(capsule);
    if (tensor == nullptr)
      Refuse(which, "its DLPack capsule is of no known version");
    if (!ReadTensor(*tensor, &address, layout, device)) {
      RefuseDType(which, nb::hasattr(object, "dtype")
                             ? Utf8(nb::str(nb::object(object.attr("dtype"))))
                             : "whatever it is");
    }
    if (kept != nullptr) *kept = capsule;
  } else if (nb::hasattr(object, "__cuda_array_interface__")) {
    *device = {kDLCUDA, 0};
    address =
        ReadInterface(which, object.attr("__cuda_array_interface__"), layout);
  } else {
    RefuseType(which, object,
               "a vmmshare.Array, or an array of another library");
  }
  if (layout->shape.size() > kMaxDimensions ||
      layout->strides.size() != layout->shape.size()) {
    Refuse(which, "it has more than 32 dimensions");
  }
  for (std::size_t i = 0; i < layout->shape.size(); ++i) {
    if (layout->strides[i] >= 0) continue;
    // Of a length of one it is never taken.
    if (layout->shape[i] > 1)
      Refuse(which, "its strides are below 0: share a copy");
    layout->strides[i] = 0;
  }
  // Libraries differ in what they say of memory that nobody asks for.
  return layout->elements() == 0 ? 0 : address;
}

}  // namespace

bool ReadTensor(const DLTensor& tensor, std::uint64_t* address, Layout* layout,
                DLDevice* device) {
  layout->dtype = FindDType(tensor.dtype);
  if (layout->dtype == nullptr || tensor.ndim < 0 ||
      static_cast<std::size_t>(tensor.ndim) > kMaxDimensions) {
    return false;
  }
  layout->shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  if (tensor.strides != nullptr) {
    layout->strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  } else {
    layout->strides = DenseStrides(layout->shape);
  }
  *device = tensor.device;
  *address = reinterpret_cast<std::uint64_t>(tensor.data) + tensor.byte_offset;
  return true;
}

std::uint64_t ReadForeign(const std::string& which, nb::handle object,
                          Layout* layout, DLDevice* device, nb::object* kept) {
  try {
    return AskForeign(which, object, layout, device, kept);
  } catch (nb::python_error& raised) {
    RaiseNamed(which, raised);
    throw;
  } catch (const nb::cast_error&) {
    throw nb::type_error(
        (which + ": what it says of itself has another type than expected, or "
                 "is out of range")
            .c_str());
  }
}

}  // namespace vmm::python
