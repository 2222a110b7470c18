#include "vmm/python/core/exchange.h"

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "vmm/python/core/array.h"
#include "vmm/python/core/dtype.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/foreign.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Null when the class has none that is understood here. It lives as long as the
// process.
const DLPackExchangeAPI* FindApi(nb::handle type) {
  constexpr char kAttribute[] = "__dlpack_c_exchange_api__";
  if (!nb::hasattr(type, kAttribute)) return nullptr;
  const nb::object capsule = type.attr(kAttribute);
  constexpr char kName[] = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), kName) == 0) return nullptr;
  auto* header = static_cast<DLPackExchangeAPIHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), kName));
  while (header != nullptr && header->version.major > 1) {
    header = header->prev_api;
  }
  if (header == nullptr || header->version.major != 1) return nullptr;
  return reinterpret_cast<const DLPackExchangeAPI*>(header);
}

void Assign(nb::handle numbers, std::vector<std::int64_t>* out) {
  out->clear();
  for (nb::handle number : numbers) {
    out->push_back(nb::cast<std::int64_t>(number));
  }
}

// In messages.
std::string NameOf(nb::handle name) {
  const std::string text = Utf8(nb::repr(name));
  return text == "''" ? "the tensor" : "tensor " + text;
}

}  // namespace

TensorClass::TensorClass(nb::handle type)
    : type_(type),
      api_(FindApi(type)),
      is_conj_(type.attr("is_conj")),
      is_neg_(type.attr("is_neg")) {}

void TensorClass::CheckType(nb::handle name, nb::handle tensor) const {
  if (PyObject_TypeCheck(tensor.ptr(),
                         reinterpret_cast<PyTypeObject*>(type_.ptr())) == 0) {
    RefuseType(NameOf(name), tensor, "a torch.Tensor");
  }
}

bool TensorClass::IsConjugate(nb::handle tensor, const DType* dtype) const {
  return (dtype == nullptr || dtype->dlpack.code == kDLComplex) &&
         nb::cast<bool>(is_conj_(tensor));
}

bool TensorClass::IsLazy(nb::handle tensor, const DType* dtype) const {
  return IsConjugate(tensor, dtype) || nb::cast<bool>(is_neg_(tensor));
}

void TensorClass::CheckNotLazy(nb::handle name, nb::handle tensor,
                               const DType* dtype) const {
  if (!IsLazy(tensor, dtype)) return;
  const bool conjugate = IsConjugate(tensor, dtype);
  Raise(VMMSHARE_INVALID_ARGUMENT,
        (NameOf(name) + " is a lazy " + (conjugate ? "conjugate" : "negative") +
         ", whose memory holds other values than it has")
            .c_str(),
        conjugate ? "Share its .resolve_conj(), made within use_pool()."
                  : "Share its .resolve_neg(), made within use_pool().");
}

bool TensorClass::ReadFast(nb::handle tensor, std::uint64_t* address,
                           Layout* layout, DLDevice* device) const {
  if (api_ == nullptr || api_->dltensor_from_py_object_no_sync == nullptr ||
      PyType_IsSubtype(Py_TYPE(tensor.ptr()),
                       reinterpret_cast<PyTypeObject*>(type_.ptr())) == 0) {
    return false;
  }
  DLTensor read{};
  if (api_->dltensor_from_py_object_no_sync(tensor.ptr(), &read) != 0) {
    PyErr_Clear();  // What is wrong shows when it is read the other way.
    return false;
  }
  return ReadTensor(read, address, layout, device);
}

std::uint64_t TensorClass::Read(nb::handle tensor, Layout* layout,
                                DLDevice* device) {
  std::uint64_t address = 0;
  if (!ReadFast(tensor, &address, layout, device)) {
    const nb::object dtype = tensor.attr("dtype");
    const auto [found, is_new] = dtypes_.try_emplace(dtype.ptr(), nullptr);
    if (is_new) {
      dtypes_.erase(found);  // Should it raise.
      dtypes_[dtype.ptr()] = &DTypeOf(dtype, kPassAsBytes);
    }
    layout->dtype = dtypes_[dtype.ptr()];
    Assign(tensor.attr("shape"), &layout->shape);
    Assign(tensor.attr("stride")(), &layout->strides);
    address = nb::cast<std::uint64_t>(tensor.attr("data_ptr")());
    if (address == 0) {
      const nb::object on = tensor.attr("device");
      *device = {kDLCPU, 0};
      if (nb::cast<std::string>(on.attr("type")) == "cuda") {
        *device = {kDLCUDA, nb::cast<std::int32_t>(on.attr("index"))};
      }
    }
  }
  if (layout->shape.size() > kMaxDimensions ||
      layout->strides.size() != layout->shape.size()) {
    throw nb::value_error("a tensor has more than 32 dimensions");
  }
  return address;
}

std::uint64_t TensorClass::ReadNamed(nb::handle name, nb::handle tensor,
                                     Layout* layout, DLDevice* device) {
  return OfTensor(name, [&] { return Read(tensor, layout, device); });
}

TensorMaker::TensorMaker(nb::handle type, nb::handle from_capsule,
                         nb::handle as_type)
    : api_(FindApi(type)), from_capsule_(from_capsule), as_type_(as_type) {}

nb::object TensorMaker::Make(const std::shared_ptr<Storage>& storage,
                             Layout& layout) const {
  const DType* const dtype = layout.dtype;
  if (dtype->dlpack.code < 7) return MakePlain(storage, layout);
  layout.dtype = FindDType({1, 8, 1});  // For one of DLPack's float8.
  return as_type_(MakePlain(storage, layout), dtype->name);
}

nb::object TensorMaker::MakePlain(const std::shared_ptr<Storage>& storage,
                                  const Layout& layout) const {
  if (api_ == nullptr) return from_capsule_(MakePlainCapsule(storage, layout));
  void* made = nullptr;
  if (api_->managed_tensor_to_py_object_no_sync(MakeManaged(storage, layout),
                                                &made) != 0) {
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(made));
}

}  // namespace vmm::python
