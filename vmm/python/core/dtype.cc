#include "vmm/python/core/dtype.h"

#include <array>
#include <string>
#include <string_view>

#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// DLPack's own codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool; of
// float8 each kind has its own.
constexpr std::array<DType, 20> kTypes = {{
    {1, "bool", {6, 8, 1}, "|b1"},
    {2, "uint8", {1, 8, 1}, "|u1"},
    {3, "int8", {0, 8, 1}, "|i1"},
    {4, "uint16", {1, 16, 1}, "<u2"},
    {5, "int16", {0, 16, 1}, "<i2"},
    {6, "uint32", {1, 32, 1}, "<u4"},
    {7, "int32", {0, 32, 1}, "<i4"},
    {8, "uint64", {1, 64, 1}, "<u8"},
    {9, "int64", {0, 64, 1}, "<i8"},
    {10, "float16", {2, 16, 1}, "<f2"},
    {11, "float32", {2, 32, 1}, "<f4"},
    {12, "float64", {2, 64, 1}, "<f8"},
    {13, "complex64", {5, 64, 1}, "<c8"},
    {14, "complex128", {5, 128, 1}, "<c16"},
    {15, "bfloat16", {4, 16, 1}, nullptr},
    {16, "float8_e4m3fn", {10, 8, 1}, nullptr},
    {17, "float8_e5m2", {12, 8, 1}, nullptr},
    {18, "float8_e8m0fnu", {14, 8, 1}, nullptr},
    {19, "float8_e4m3fnuz", {11, 8, 1}, nullptr},
    {20, "float8_e5m2fnuz", {13, 8, 1}, nullptr},
}};

const DType* FindByName(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.substr(0, kTorch.size()) == kTorch)
    name.remove_prefix(kTorch.size());
  for (const DType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const DType* FindByAttribute(nb::handle object, const char* attribute) {
  if (!nb::hasattr(object, attribute)) return nullptr;
  const nb::object name = object.attr(attribute);
  return nb::isinstance<nb::str>(name) ? FindByName(Utf8(name)) : nullptr;
}

// NumPy gives both byte orders one name. '>' is never this machine's own: that
// is '='.
bool IsSwapped(nb::handle object) {
  if (!nb::hasattr(object, "byteorder")) return false;
  const nb::object order = object.attr("byteorder");
  return nb::isinstance<nb::str>(order) && Utf8(order) == ">";
}

}  // namespace

const DType* FindDType(std::uint8_t code) {
  for (const DType& type : kTypes) {
    if (code == type.code) return &type;
  }
  return nullptr;
}

const DType* FindDType(DLDataType dlpack) {
  for (const DType& type : kTypes) {
    if (dlpack.code == type.dlpack.code && dlpack.bits == type.dlpack.bits &&
        dlpack.lanes == 1) {
      return &type;
    }
  }
  return nullptr;
}

const DType* FindDTypeOfTypestr(std::string_view typestr) {
  constexpr std::string_view kOwnOrders = "<=|";
  if (!typestr.empty() && kOwnOrders.find(typestr.front()) != kOwnOrders.npos) {
    typestr.remove_prefix(1);
  }
  for (const DType& type : kTypes) {
    if (type.typestr != nullptr &&
        typestr == std::string_view(type.typestr).substr(1)) {
      return &type;
    }
  }
  return nullptr;
}

const DType& DTypeOf(nb::handle object, const char* remedy) {
  const DType* found = nullptr;
  const std::string text = Utf8(nb::str(object));
  if (nb::isinstance<nb::str>(object)) {
    found = FindByName(text);
    if (found == nullptr) found = FindDTypeOfTypestr(text);
  } else if (!IsSwapped(object)) {
    // numpy.dtype has a name, numpy.float16 a __name__, torch.float16 a text.
    found = FindByAttribute(object, "name");
    if (found == nullptr) found = FindByAttribute(object, "__name__");
    if (found == nullptr) found = FindByName(text);
  }
  if (found != nullptr) return *found;
  std::string message = "dtype ";
  message += text;
  message += " is not known; expected one of";
  for (const DType& type : kTypes) message += std::string(" ") + type.name;
  message += remedy;
  throw nb::type_error(message.c_str());
}

}  // namespace vmm::python
