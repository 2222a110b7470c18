// Reads: where arrays of this process lie, and which of them lie in each other's
// bytes; what a tensor set is put from.
#ifndef VMMSHARE_VMM_PYTHON_CORE_READS_H_
#define VMMSHARE_VMM_PYTHON_CORE_READS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vmm/python/core/exchange.h"
#include "vmm/python/core/layout.h"
#include "vmm/python/core/weights_layout.h"
#include "vmm/python/core/weights_writer.h"

namespace vmm::python {

// 20,000 tensors are some milliseconds here, and a hundred as objects of Python's.
class Reads {
 public:
  // Those of `type`, PyTorch's, unless it is None, are read as its tensors.
  explicit Reads(nanobind::handle type);

  // One more. `name` is a str; of one array alone it is empty.
  void Read(nanobind::handle name, nanobind::handle array);
  void ReadAll(const nanobind::dict& arrays);
  // The same of one that has no memory: `offset` bytes into `storage`, a number that
  // is not 0. None for `strides` is row-major.
  void Say(nanobind::handle name, std::uint64_t storage, std::uint64_t offset,
           nanobind::handle dtype, nanobind::handle shape,
           nanobind::handle strides);

  // (name, address, dtype, shape, strides, on_device, itemsize, nbytes, is_dense)
  // of each.
  nanobind::list Rows() const;
  // (name, first) of those whose elements do not lie side by side, nor in another
  // one's bytes; `first` is the first of those that lie as this one does.
  nanobind::list Loose() const;
  // Adds all to the layout. Those that lie in another one's bytes are aliases of it,
  // but for those named in `apart`.
  void LayOut(WeightsLayout& layout, const std::vector<std::string>& apart);
  // By name, the place of each that is no alias. REQUIRES: LayOut() was called.
  nanobind::dict Own() const;
  // Copies the bytes of these to a set of that layout.
  void CopyTo(WeightsWriter& writer) const;

 private:
  struct Entry {
    nanobind::object name;
    nanobind::object kept;  // By which its memory is there until it was copied.
    Layout layout;
    std::uint64_t storage = 0;  // None: it lies in memory.
    std::uint64_t address = 0;  // Or within its storage.
    bool on_device = true;
    std::uint64_t nbytes = 0;  // From its first element to its last.
    bool is_dense = true;      // Whether its elements fill these, each once.
    std::uint64_t place = 0;   // In the layout.
    bool is_alias = false;
  };
  // Of each entry the one in whose bytes it lies.
  std::vector<std::optional<std::size_t>> Covers() const;

  const nanobind::object type_;
  std::optional<TensorClass> tensors_;
  std::vector<Entry> entries_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_READS_H_
