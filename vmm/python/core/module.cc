// vmmshare._core: the C interface as Python classes.
#include <nanobind/nanobind.h>

#include <exception>
#include <typeinfo>

#include "vmm/python/core/array.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/interpreter_end.h"

namespace {

// A number or text that is none of what was expected, where the class of the
// argument does not say it.
void RaiseTypeError(const std::exception_ptr& raised, void*) {
  try {
    std::rethrow_exception(raised);
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_TypeError,
                    "an argument has another type than expected, or is out of "
                    "range. Check it against the docstring.");
  }
}

}  // namespace

NB_MODULE(_core, module) {
  nanobind::register_exception_translator(&RaiseTypeError);
  // What lives until the interpreter ends is let go of by the process's end.
  nanobind::set_leak_warnings(false);
  vmm::python::WatchForTheEnd();
  module.attr("_version") = vmmshare_version();
  vmm::python::DefineArray(module);
  vmm::python::DefineDriver(module);
  vmm::python::DefineMemory(module);
  vmm::python::DefinePool(module);
  vmm::python::DefineFence(module);
  vmm::python::DefineFenceArray(module);
  vmm::python::DefineMeet(module);
  vmm::python::DefineRemotePool(module);
  vmm::python::DefineServer(module);
  vmm::python::DefineFetched(module);
  vmm::python::DefineRdma(module);
  vmm::python::DefineRestorable(module);
  vmm::python::DefineRegion(module);
  vmm::python::DefineKeeper(module);
  vmm::python::DefineHooks(module);
  vmm::python::DefineRing(module);
  vmm::python::DefineSymmetric(module);
  vmm::python::DefineSafetensors(module);
  vmm::python::DefineWeightsLayout(module);
  vmm::python::DefineWeights(module);
  vmm::python::DefineReads(module);
}
