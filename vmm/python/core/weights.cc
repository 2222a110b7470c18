// Tensor sets: what vmmshare.weights stands on.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/exchange.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/safetensors.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/wait.h"
#include "vmm/python/core/weights_layout.h"
#include "vmm/python/core/weights_writer.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// A tensor's own bytes, so that a view of its array leaves neither these nor the
// set.
class TensorBytes final : public Storage {
 public:
  TensorBytes(std::shared_ptr<Storage> whole, std::uint64_t offset,
              std::uint64_t bytes)
      : Storage(whole->address + offset, bytes, whole->place),
        whole_(std::move(whole)) {}

 private:
  const std::shared_ptr<Storage> whole_;
};

struct Weights {
  void Close() { LetGo(handle.Take(), std::move(storage)); }

  Holder<vmmshare_weights> handle;
  std::shared_ptr<Storage> storage;  // Null once it is closed.
};

// All of the memory that a set is in.
std::shared_ptr<Storage> StorageOf(
    const std::shared_ptr<vmmshare_driver>& driver,
    const std::shared_ptr<vmmshare_memory>& memory, bool readonly) {
  const Located at =
      Locate(driver.get(), vmmshare_memory_address(memory.get()));
  return std::make_shared<WholeMemory>(
      memory, PlaceOf(at.on_host, at.device, readonly));
}

void Begin(WeightsWriter* self, const Allocation& memory,
           const WeightsLayout& layout) {
  const auto kept = memory.handle.shared();
  const auto driver = DefaultDriver();
  const auto lay = layout.handle.shared();
  // On a thread, for it waits for the device's default stream.
  auto begun = MakeClosedByOnAThread<vmmshare_weights_writer>(
      [kept](vmmshare_weights_writer* writer) {
        vmmshare_weights_writer_close(writer);
      },
      [driver, kept, lay](vmmshare_weights_writer** made,
                          vmmshare_error** error) {
        return vmmshare_weights_begin(driver.get(), kept.get(), lay.get(), made,
                                      error);
      });
  new (self)
      WeightsWriter{Holder<vmmshare_weights_writer>(std::move(begun)), kept,
                    lay, layout.count, StorageOf(driver, kept, false)};
}

void Open(Weights* self, const Allocation& memory) {
  const auto kept = memory.handle.shared();
  const auto driver = DefaultDriver();
  auto opened = Make(&vmmshare_weights_close, [&](vmmshare_weights** made,
                                                  vmmshare_error** error) {
    return vmmshare_weights_open(driver.get(), kept.get(), made, error);
  });
  new (self) Weights{Holder<vmmshare_weights>(Keeping(kept, std::move(opened))),
                     StorageOf(driver, kept, memory.readonly)};
}

// Calls `take(tensor, storage, layout)` for each of `count` tensors in `whole`,
// which `describe(place, tensor, error)` tells.
template <typename Describe, typename Take>
void ForEach(std::uint64_t count, const Describe& describe,
             const std::shared_ptr<Storage>& whole, const Take& take) {
  for (std::uint64_t place = 0; place < count; ++place) {
    auto tensor = Sized<vmmshare_tensor>();
    Must([&](vmmshare_error** error) {
      return describe(place, &tensor, error);
    });
    Layout layout;
    Assign(tensor, &layout);
    const std::uint64_t size = whole->size;
    if (tensor.offset > size || tensor.bytes > size - tensor.offset) {
      throw nb::value_error("a tensor leaves the memory of its set");
    }
    auto storage =
        std::make_shared<TensorBytes>(whole, tensor.offset, tensor.bytes);
    CheckWithin(layout, tensor.bytes);
    take(tensor, std::move(storage), std::move(layout));
  }
}

// Of a set: what its manifest says.
template <typename Take>
void ForEach(const Weights& self, const Take& take) {
  const auto set = self.handle.shared();
  const std::shared_ptr<Storage> whole =
      self.storage;  // Raised, or it is there.
  ForEach(
      vmmshare_weights_count(set.get()),
      [&](std::uint64_t place, vmmshare_tensor* tensor,
          vmmshare_error** error) {
        return vmmshare_weights_tensor(set.get(), place, tensor, error);
      },
      whole, take);
}

// Of one that is being written: what its layout says.
template <typename Take>
void ForEach(const WeightsWriter& self, const Take& take) {
  const auto open = self.handle.shared();
  const std::shared_ptr<Storage> whole = self.storage;
  ForEach(
      self.count,
      [&](std::uint64_t place, vmmshare_tensor* tensor,
          vmmshare_error** error) {
        return vmmshare_weights_layout_tensor(self.layout.get(), place, tensor,
                                              error);
      },
      whole, take);
}

template <typename Set>
nb::dict Arrays(const Set& self) {
  nb::dict arrays;
  ForEach(self, [&](const vmmshare_tensor& tensor,
                    std::shared_ptr<Storage> storage, Layout layout) {
    arrays[tensor.name] = MakeArray(std::move(storage), std::move(layout));
  });
  return arrays;
}

// As TensorMaker has it.
template <typename Set>
nb::dict Tensors(const Set& self, nb::handle type, nb::handle from_capsule,
                 nb::handle as_type) {
  const TensorMaker maker(type, from_capsule, as_type);
  nb::dict tensors;
  ForEach(self, [&](const vmmshare_tensor& tensor,
                    const std::shared_ptr<Storage>& storage, Layout layout) {
    tensors[tensor.name] = maker.Make(storage, layout);
  });
  return tensors;
}

nb::list Table(const Weights& self) {
  nb::list rows;
  ForEach(self, [&](const vmmshare_tensor& tensor,
                    const std::shared_ptr<Storage>&, const Layout& layout) {
    nb::dict row;
    row["name"] = tensor.name;
    row["dtype"] = layout.dtype->name;
    row["shape"] = TupleOf(layout.shape);
    row["strides"] = TupleOf(layout.strides);
    row["offset"] = tensor.offset;
    row["nbytes"] = tensor.bytes;
    row["alias_of"] = nb::none();
    if ((tensor.flags & VMMSHARE_TENSOR_ALIAS) != 0) {
      row["alias_of"] = rows[tensor.alias_of]["name"];
    }
    row["checksum"] = nb::none();
    if ((tensor.flags & VMMSHARE_TENSOR_CHECKSUM) != 0) {
      row["checksum"] = tensor.checksum;
    }
    rows.append(row);
  });
  return rows;
}

nb::object Metadata(const Weights& self) {
  return JsonOf(self.handle, &vmmshare_weights_metadata);
}

std::uint64_t Verify(const Weights& self) {
  const auto set = self.handle.shared();
  std::uint64_t compared = 0;
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_weights_verify(set.get(), &compared, error);
  });
  return compared;
}

}  // namespace

void DefineWeights(nb::module_& module) {
  nb::class_<WeightsWriter> writer(module, "_WeightsWriter");
  writer.def("__init__", &Begin, nb::arg("memory"), nb::arg("layout"))
      .def("load_copying", &LoadCopying)
      .def("copy_tensors", &CopyTensors, nb::arg("type"), nb::arg("tensors"),
           nb::arg("places"), nb::arg("stream"))
      .def("read_files", &ReadFiles, nb::arg("paths"), nb::arg("reads"),
           nb::arg("threads"), nb::arg("progress").none())
      .def("publish", &Publish, nb::arg("keeper"), nb::arg("name"),
           nb::arg("checksum_all"), nb::arg("timeout").none())
      .def("seal", &Seal, nb::arg("generation"))
      .def("arrays", &Arrays<WeightsWriter>)
      .def("tensors", &Tensors<WeightsWriter>, nb::arg("type"),
           nb::arg("from_capsule"), nb::arg("as_type"));
  DefineClosing(writer, "Lets go of the memory.");
  nb::class_<Weights> weights(module, "_Weights");
  weights.def("__init__", &Open, nb::arg("memory"))
      .def_prop_ro("generation",
                   [](const Weights& self) {
                     return vmmshare_weights_generation(self.handle.get());
                   })
      .def_prop_ro(
          "fingerprint",
          [](const Weights& self) {
            return std::string(vmmshare_weights_fingerprint(self.handle.get()));
          })
      .def("metadata", &Metadata)
      .def("table", &Table)
      .def("arrays", &Arrays<Weights>)
      .def("tensors", &Tensors<Weights>, nb::arg("type"),
           nb::arg("from_capsule"), nb::arg("as_type"))
      .def("verify", &Verify);
  DefineClosing(weights, "Lets go of the memory; arrays of it keep it.");
}

}  // namespace vmm::python
