// Arrays of other libraries: where they lie, as DLPack or
// __cuda_array_interface__ says.
#ifndef VMMSHARE_VMM_PYTHON_CORE_FOREIGN_H_
#define VMMSHARE_VMM_PYTHON_CORE_FOREIGN_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "vmm/python/core/dlpack_abi.h"
#include "vmm/python/core/layout.h"

namespace vmm::python {

// Reads one of DLPack's. False for a type that is not known, or with more than
// kMaxDimensions.
bool ReadTensor(const DLTensor& tensor, std::uint64_t* address, Layout* layout,
                DLDevice* device);

// The address of the first element of `object`; 0 for an array without elements,
// and then `device` says where it would be. `layout` has no offset. Waits for no
// stream. `which` names the object in messages: TypeError for one that is no
// array or of a type that is not known, ValueError for one whose strides are
// below 0 or no multiples of its elements, and for a lazy negative of PyTorch's,
// which its memory does not tell. A BufferError, KeyError, TypeError or ValueError
// of the object's own is raised anew with that name.
// The address is good while the capsule is there that `kept`, if given, becomes:
// memory may be made for it.
std::uint64_t ReadForeign(const std::string& which, nanobind::handle object,
                          Layout* layout, DLDevice* device,
                          nanobind::object* kept = nullptr);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_FOREIGN_H_
