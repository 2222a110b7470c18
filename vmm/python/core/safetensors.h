// Headers of safetensors files, and what is read of the files.
#ifndef VMMSHARE_VMM_PYTHON_CORE_SAFETENSORS_H_
#define VMMSHARE_VMM_PYTHON_CORE_SAFETENSORS_H_

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "vmm/c/safetensors.h"
#include "vmm/c/weights.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/weights_layout.h"

namespace vmm::python {

struct Safetensors {
  Holder<vmmshare_safetensors> handle;
};

// What _WeightsWriter.read_files() reads, by the files' places.
struct FileReads {
  std::vector<vmmshare_file_read> reads;
};

// Adds the tensors of files to the layout, those for which `select` is none or
// select(name, file's place) is true, and of each what the vmmshare.weights.Shard `shard` takes, or
// all for none. `paths` is how messages call the files.
FileReads AddFiles(WeightsLayout& layout,
                   const std::vector<const Safetensors*>& headers,
                   const std::vector<std::string>& paths,
                   nanobind::handle select, nanobind::handle shard);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_SAFETENSORS_H_
