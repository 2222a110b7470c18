// Tensors of a library that has DLPack's exchange API (PyTorch from 2.10 on,
// tvm-ffi), which converts without Python in between, or of one that looks like
// PyTorch. TensorClass reads them, TensorMaker makes them.
#ifndef VMMSHARE_VMM_PYTHON_CORE_EXCHANGE_H_
#define VMMSHARE_VMM_PYTHON_CORE_EXCHANGE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>

#include "vmm/python/core/dlpack_abi.h"
#include "vmm/python/core/layout.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

class TensorClass {
 public:
  explicit TensorClass(nanobind::handle type);

  // TypeError for no tensor. `name` is for the message.
  void CheckType(nanobind::handle name, nanobind::handle tensor) const;
  // Whether its memory holds other values than it has.
  bool IsLazy(nanobind::handle tensor, const DType* dtype) const;
  // InvalidArgument for one whose memory holds other values than it has:
  // PyTorch's lazy conjugates, which are complex, and negatives. `dtype` is its
  // type, or null where that was not read.
  void CheckNotLazy(nanobind::handle name, nanobind::handle tensor,
                    const DType* dtype) const;

  // The address of its first element; 0 for an empty one, and then `device`
  // says where that is. `layout`, which may be used again, has no offset.
  // TypeError for a type that is not known.
  std::uint64_t Read(nanobind::handle tensor, Layout* layout, DLDevice* device);
  // The same of one of several, whose name is in what is raised.
  std::uint64_t ReadNamed(nanobind::handle name, nanobind::handle tensor,
                          Layout* layout, DLDevice* device);

 private:
  bool IsConjugate(nanobind::handle tensor, const DType* dtype) const;
  bool ReadFast(nanobind::handle tensor, std::uint64_t* address, Layout* layout,
                DLDevice* device) const;

  const nanobind::handle type_;
  const DLPackExchangeAPI* const api_;
  const nanobind::object is_conj_;
  const nanobind::object is_neg_;
  std::map<PyObject*, const DType*> dtypes_;  // That were asked for.
};

class TensorMaker {
 public:
  // `from_capsule` makes a tensor where there is no such API. Types that not all
  // versions of PyTorch take by DLPack come as bytes, of which
  // `as_type(tensor, name)` makes the right ones.
  TensorMaker(nanobind::handle type, nanobind::handle from_capsule,
              nanobind::handle as_type);

  // A tensor that keeps `storage`. Orders no streams. `layout` may have another
  // type after it.
  nanobind::object Make(const std::shared_ptr<Storage>& storage,
                        Layout& layout) const;

 private:
  nanobind::object MakePlain(const std::shared_ptr<Storage>& storage,
                             const Layout& layout) const;

  const DLPackExchangeAPI* const api_;
  const nanobind::handle from_capsule_;
  const nanobind::handle as_type_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_EXCHANGE_H_
