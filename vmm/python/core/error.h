// From a vmmshare_error to a Python exception of vmmshare.errors.
#ifndef VMMSHARE_VMM_PYTHON_CORE_ERROR_H_
#define VMMSHARE_VMM_PYTHON_CORE_ERROR_H_

#include "vmm/c/base.h"

namespace vmm::python {

// Throws the exception for `status`. Takes over `error`. Needs the GIL.
[[noreturn]] void Raise(vmmshare_status status, vmmshare_error* error);

// Throws one of this module's own making: INVALID_ARGUMENT, say.
[[noreturn]] void Raise(vmmshare_status status, const char* message,
                        const char* remedy);

// Throws unless `call`, which is given the address of an error, answers OK.
template <typename Call>
void Must(const Call& call) {
  vmmshare_error* error = nullptr;
  const vmmshare_status status = call(&error);
  if (status != VMMSHARE_OK) Raise(status, error);
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_ERROR_H_
