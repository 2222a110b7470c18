// A set that is being written, and what is done to it.
#ifndef VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_WRITER_H_
#define VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_WRITER_H_

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vmm/c/weights.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/layout.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

struct FileReads;

struct WeightsWriter {
  void Close() { LetGo(handle.Take(), std::move(storage), std::move(memory)); }

  Holder<vmmshare_weights_writer> handle;
  std::shared_ptr<vmmshare_memory> memory;  // Null once it is closed.
  const std::shared_ptr<vmmshare_weights_layout> layout;
  const std::uint64_t count;
  std::shared_ptr<Storage> storage;  // The same.
  // Of all tensors, side by side, once they were asked for.
  struct Layouts {
    std::vector<const DType*> dtypes = {};
    std::vector<std::int64_t> numbers = {};  // Lengths, then strides.
    std::vector<std::size_t> begins = {0};   // Of each; then the end of all.
  };
  Layouts layouts = {};
  // Whether publish() goes on, which it does after Ctrl-C too.
  const std::shared_ptr<std::atomic<bool>> publishing =
      std::make_shared<std::atomic<bool>>(false);
};

// How the tensor's elements lie; not where.
void Assign(const vmmshare_tensor& tensor, Layout* layout);

// vmmshare_weights_copy_all(); `from_device` is the flag. REQUIRES: as many addresses
// as places.
void CopyAll(WeightsWriter& self, const std::vector<std::uint64_t>& places,
             const std::vector<std::uint64_t>& addresses, std::intptr_t stream,
             bool from_device);

// Copies those of `tensors`, each to the tensor at its place, that lie on the set's
// device as they are to lie here; returns which of them do not. Some are on their
// way while the next are looked at.
std::vector<std::uint64_t> CopyTensors(WeightsWriter& self,
                                       nanobind::handle type,
                                       const nanobind::list& tensors,
                                       const std::vector<std::uint64_t>& places,
                                       std::intptr_t stream);

// Reads `given` of the files. `progress(done, total)` is called with bytes, unless it
// is None; what it raises ends the reading.
void ReadFiles(WeightsWriter& self, const std::vector<nanobind::bytes>& paths,
               const FileReads& given, std::uint32_t threads,
               nanobind::handle progress);

// Has the Keeper hold it under the name; returns the generation.
std::uint64_t Publish(WeightsWriter& self, nanobind::handle keeper,
                      const std::string& name, bool checksum_all,
                      nanobind::handle timeout);
void Seal(WeightsWriter& self, std::uint64_t generation);
// Loads what CopyTensors() takes, which cannot be had while streams wait.
void LoadCopying(WeightsWriter& self);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_WRITER_H_
