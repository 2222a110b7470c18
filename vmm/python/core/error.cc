#include "vmm/python/core/error.h"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "vmm/python/core/object.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// It may name a file, whose name may be no UTF-8.
nb::object StrOf(const std::string& text) {
  return Steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

[[noreturn]] void Throw(vmmshare_status status, const std::string& message,
                        const std::string& remedy, std::int32_t cuda_result) {
  const nb::object make =
      nb::module_::import_("vmmshare.errors").attr("_from_status");
  nb::object cuda = nb::none();
  if (cuda_result >= 0) cuda = nb::int_(cuda_result);
  const nb::object exception =
      make(vmmshare_status_name(status), StrOf(message), StrOf(remedy), cuda);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void Raise(vmmshare_status status, vmmshare_error* error) {
  const std::unique_ptr<vmmshare_error, decltype(&vmmshare_error_free)> own(
      error, &vmmshare_error_free);
  Throw(status, vmmshare_error_message(error), vmmshare_error_remedy(error),
        vmmshare_error_cuda_result(error));
}

void Raise(vmmshare_status status, const char* message, const char* remedy) {
  Throw(status, message, remedy, -1);
}

}  // namespace vmm::python
