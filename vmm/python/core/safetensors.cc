#include "vmm/python/core/safetensors.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <string_view>

#include "vmm/python/core/dtype.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void Open(Safetensors* self, const nb::bytes& name) {
  const std::string path(name.c_str(), name.size());
  WithoutNul(path);
  new (self) Safetensors{Holder<vmmshare_safetensors>(
      Make(&vmmshare_safetensors_close,
           [&](vmmshare_safetensors** made, vmmshare_error** error) {
             return vmmshare_safetensors_open(path.c_str(), made, error);
           }))};
}

template <typename Take>
void ForEach(const Safetensors& header, const Take& take) {
  const auto handle = header.handle.shared();
  const std::uint64_t count = vmmshare_safetensors_count(handle.get());
  for (std::uint64_t place = 0; place < count; ++place) {
    auto tensor = Sized<vmmshare_tensor>();
    Must([&](vmmshare_error** error) {
      return vmmshare_safetensors_tensor(handle.get(), place, &tensor, error);
    });
    take(tensor);
  }
}

nb::tuple ShapeOf(const vmmshare_tensor& tensor) {
  return TupleOf({tensor.shape, tensor.shape + tensor.rank});
}

nb::list Entries(const Safetensors& self) {
  nb::list entries;
  ForEach(self, [&](const vmmshare_tensor& tensor) {
    entries.append(nb::make_tuple(
        tensor.name, FindDType(static_cast<std::uint8_t>(tensor.dtype))->name,
        ShapeOf(tensor), tensor.offset, tensor.bytes));
  });
  return entries;
}

nb::object Metadata(const Safetensors& self) {
  return JsonOf(self.handle, &vmmshare_safetensors_metadata);
}

// Which file has a tensor of this name.
std::size_t FileWith(const std::vector<const Safetensors*>& headers,
                     std::string_view name) {
  std::size_t found = headers.size();
  for (std::size_t file = headers.size(); file-- > 0;) {
    ForEach(*headers[file], [&](const vmmshare_tensor& tensor) {
      if (tensor.name == name) found = file;
    });
  }
  return found;
}

// One file's tensors on their way to a layout.
struct Adding {
  WeightsLayout& layout;
  const std::uint64_t file;
  const std::string& path;
  const nb::handle shard;
  std::vector<vmmshare_file_read>& reads;

  // ALREADY_EXISTS is told and not raised: the caller knows the files.
  bool Add(const vmmshare_tensor& tensor) {
    if (shard.is_none()) {
      const auto place = AddTensor(layout, tensor, path);
      if (!place.has_value()) return false;
      reads.push_back(
          {*place, file, tensor.offset, tensor.bytes, tensor.bytes});
      return true;
    }
    const nb::tuple whole = ShapeOf(tensor);
    const std::vector<std::int64_t> shape =
        python::ShapeOf(shard.attr("lengths")(tensor.name, whole));
    const auto rows = nb::cast<std::vector<std::array<std::uint64_t, 3>>>(
        shard.attr("rows")(tensor.name, whole, tensor.bytes));
    vmmshare_tensor taken = tensor;
    taken.rank = static_cast<std::uint32_t>(shape.size());
    taken.shape = shape.data();
    taken.strides = nullptr;
    const auto place = AddTensor(layout, taken, path);
    if (!place.has_value()) return false;
    for (const auto& [offset, bytes, pitch] : rows) {
      reads.push_back({*place, file, tensor.offset + offset, bytes, pitch});
    }
    return true;
  }
};

}  // namespace

FileReads AddFiles(WeightsLayout& layout,
                   const std::vector<const Safetensors*>& headers,
                   const std::vector<std::string>& paths, nb::handle select,
                   nb::handle shard) {
  FileReads all;
  for (std::size_t file = 0; file < headers.size(); ++file) {
    Adding adding{layout, file, paths.at(file), shard, all.reads};
    ForEach(*headers[file], [&](const vmmshare_tensor& tensor) {
      if (!select.is_none() &&
          !nb::cast<bool>(nb::bool_(select(tensor.name, file)))) {
        return;
      }
      if (adding.Add(tensor)) return;
      const std::string message = std::string("tensor '") + tensor.name +
                                  "' is in " +
                                  paths.at(FileWith(headers, tensor.name)) +
                                  " and in " + paths.at(file);
      Raise(VMMSHARE_ALREADY_EXISTS, message.c_str(),
            "Load one of the files, or select what comes of each.");
    });
  }
  return all;
}

void DefineSafetensors(nb::module_& module) {
  nb::class_<Safetensors>(module, "_Safetensors")
      .def("__init__", &Open, nb::arg("path"))
      .def("entries", &Entries)
      .def("metadata", &Metadata);
  nb::class_<FileReads>(module, "_FileReads");
}

}  // namespace vmm::python
