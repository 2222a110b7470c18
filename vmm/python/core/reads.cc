#include "vmm/python/core/reads.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/foreign.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Bytes from the first element to the last, and whether the elements fill these,
// each once, in whatever order.
std::pair<std::uint64_t, bool> Measure(const Layout& layout) {
  const std::optional<std::uint64_t> nbytes = SpanBytes(layout);
  if (!nbytes.has_value()) {
    throw nb::value_error("the array's shape and strides overflow");
  }
  if (*nbytes == 0) return {0, true};
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    if (layout.shape[i] == 1) continue;
    dimensions.emplace_back(layout.strides[i], layout.shape[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t expected = 1;
  bool is_dense = true;
  for (const auto& [stride, length] : dimensions) {
    is_dense = stride == expected;
    if (!is_dense) break;
    expected *= length;  // At most the elements of `nbytes`.
  }
  return {*nbytes, is_dense};
}

// Utf8View() for C.
const char* CStringOf(nb::handle name) {
  const std::string_view text = Utf8View(name);
  if (text.find('\0') != std::string_view::npos) WithoutNul(std::string(text));
  return text.data();
}

// As of the device "meta", whose tensors have addresses that are none.
void CheckIsCpu(nb::handle name, const nb::object& device) {
  if (nb::cast<std::string>(device.attr("type")) == "cpu") return;
  throw nb::value_error(
      ("tensor " + Utf8(nb::repr(name)) + " is on the device " +
       Utf8(nb::str(device)) +
       ", whose memory is not read: move it to the CPU or a CUDA device")
          .c_str());
}

}  // namespace

Reads::Reads(nb::handle type) : type_(nb::borrow(type)) {
  if (!type.is_none()) tensors_.emplace(type);
}

void Reads::Read(nb::handle name, nb::handle array) {
  if (!nb::isinstance<nb::str>(name)) RefuseType("the name", name, "a str");
  Entry entry;
  entry.name = nb::borrow(name);
  DLDevice device{};
  if (tensors_.has_value() && nb::isinstance(array, type_)) {
    entry.address = tensors_->ReadNamed(name, array, &entry.layout, &device);
    tensors_->CheckNotLazy(name, array, entry.layout.dtype);
    // Not all versions of PyTorch say it by DLPack.
    entry.on_device =
        device.device_type == kDLCUDA || nb::cast<bool>(array.attr("is_cuda"));
    if (!entry.on_device) CheckIsCpu(name, array.attr("device"));
    entry.kept = nb::borrow(array);
  } else if (nb::isinstance<Array>(array)) {
    // Without a wait for its fence: whoever copies it does that.
    const Array& own = nb::cast<const Array&>(array);
    const auto storage = own.storage();
    entry.layout = own.layout();
    entry.layout.offset = 0;
    entry.address = own.layout().elements() == 0 ? 0 : own.address();
    entry.on_device = storage->place.device.device_type != kDLCPU;
    entry.kept = MakePlainCapsule(storage, own.layout());
  } else {
    const std::string which =
        nb::len(name) == 0 ? "the array" : "array " + Utf8(nb::repr(name));
    entry.address =
        ReadForeign(which, array, &entry.layout, &device, &entry.kept);
    entry.on_device = device.device_type != kDLCPU;
  }
  std::tie(entry.nbytes, entry.is_dense) =
      OfTensor(name, [&] { return Measure(entry.layout); });
  entries_.push_back(std::move(entry));
}

void Reads::ReadAll(const nb::dict& arrays) {
  entries_.reserve(entries_.size() + nb::len(arrays));
  for (const auto [name, array] : arrays) Read(name, array);
}

void Reads::Say(nb::handle name, std::uint64_t storage, std::uint64_t offset,
                nb::handle dtype, nb::handle shape, nb::handle strides) {
  if (!nb::isinstance<nb::str>(name)) RefuseType("the name", name, "a str");
  Entry entry;
  entry.name = nb::borrow(name);
  entry.storage = storage;
  entry.address = offset;
  OfTensor(name, [&] {
    entry.layout.dtype = &DTypeOf(dtype, kPassAsBytes);
    entry.layout.shape = ShapeOf(shape);
    if (!strides.is_none()) {
      entry.layout.strides = ShapeOf(strides);
      if (entry.layout.strides.size() != entry.layout.shape.size()) {
        throw nb::value_error("as many strides as lengths were expected");
      }
      std::tie(entry.nbytes, entry.is_dense) = Measure(entry.layout);
    } else {
      // What no shape can be is said of it when it is laid out.
      const auto nbytes =
          DenseBytes(entry.layout.shape, entry.layout.dtype->itemsize());
      if (nbytes.has_value()) {
        entry.layout.strides = DenseStrides(entry.layout.shape);
      }
      entry.nbytes = nbytes.value_or(0);
    }
  });
  entries_.push_back(std::move(entry));
}

nb::list Reads::Rows() const {
  nb::list rows;
  for (const Entry& entry : entries_) {
    rows.append(nb::make_tuple(
        entry.name, entry.address, entry.layout.dtype->name,
        TupleOf(entry.layout.shape), TupleOf(entry.layout.strides),
        entry.on_device, entry.layout.dtype->itemsize(), entry.nbytes,
        entry.is_dense));
  }
  return rows;
}

std::vector<std::optional<std::size_t>> Reads::Covers() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].nbytes > 0) order.push_back(i);
  }
  // Whoever may lie in another one's bytes comes after it.
  std::stable_sort(
      order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
        const Entry& one = entries_[a];
        const Entry& other = entries_[b];
        return std::tie(one.on_device, one.storage, one.address, other.nbytes) <
               std::tie(other.on_device, other.storage, other.address,
                        one.nbytes);
      });
  std::vector<std::optional<std::size_t>> covers(entries_.size());
  std::optional<std::size_t> cover;
  for (const std::size_t i : order) {
    const Entry& entry = entries_[i];
    const Entry* before = cover.has_value() ? &entries_[*cover] : nullptr;
    if (before != nullptr && before->on_device == entry.on_device &&
        before->storage == entry.storage) {
      const std::uint64_t from = entry.address - before->address;
      if (from <= before->nbytes && entry.nbytes <= before->nbytes - from &&
          from % static_cast<std::uint64_t>(entry.layout.dtype->itemsize()) ==
              0) {
        covers[i] = cover;
        continue;
      }
    }
    if (entry.is_dense) cover = i;
  }
  return covers;
}

nb::list Reads::Loose() const {
  const auto covers = Covers();
  std::map<std::tuple<std::uint64_t, bool, const DType*,
                      std::vector<std::int64_t>, std::vector<std::int64_t>>,
           std::size_t>
      firsts;
  nb::list loose;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.is_dense || covers[i].has_value()) continue;
    const auto [first, is_new] =
        firsts.try_emplace({entry.address, entry.on_device, entry.layout.dtype,
                            entry.layout.shape, entry.layout.strides},
                           i);
    loose.append(nb::make_tuple(entry.name, entries_[first->second].name));
  }
  return loose;
}

void Reads::LayOut(WeightsLayout& layout,
                   const std::vector<std::string>& apart) {
  auto covers = Covers();
  if (!apart.empty()) {
    const std::set<std::string> names(apart.begin(), apart.end());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (names.contains(CStringOf(entries_[i].name))) covers[i].reset();
    }
  }
  const auto add = [&](Entry& entry, const Entry* base) {
    vmmshare_tensor tensor{};
    tensor.name = CStringOf(entry.name);
    tensor.dtype = entry.layout.dtype->code;
    tensor.rank = static_cast<std::uint32_t>(entry.layout.shape.size());
    tensor.shape = entry.layout.shape.data();
    const bool is_said = entry.layout.strides.size() == tensor.rank;
    if (is_said && (base != nullptr || entry.is_dense)) {
      tensor.strides = entry.layout.strides.data();
    }
    if (base != nullptr) {
      tensor.offset = entry.address - base->address;
      tensor.alias_of = static_cast<std::uint32_t>(base->place);
      tensor.flags = VMMSHARE_TENSOR_ALIAS;
    }
    entry.is_alias = base != nullptr;
    entry.place = AddTensor(layout, tensor).value();  // A dict has each once.
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!covers[i].has_value()) add(entries_[i], nullptr);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (covers[i].has_value()) add(entries_[i], &entries_[*covers[i]]);
  }
}

nb::dict Reads::Own() const {
  nb::dict own;
  for (const Entry& entry : entries_) {
    if (!entry.is_alias) own[entry.name] = entry.place;
  }
  return own;
}

void Reads::CopyTo(WeightsWriter& writer) const {
  std::vector<std::uint64_t> places;
  std::vector<std::uint64_t> addresses;
  std::vector<const Entry*> of_host;
  for (const Entry& entry : entries_) {
    if (entry.is_alias || entry.nbytes == 0) continue;
    if (!entry.on_device) {
      of_host.push_back(&entry);
      continue;
    }
    places.push_back(entry.place);
    addresses.push_back(entry.address);
  }
  const auto handle = writer.handle.shared();
  for (const Entry* entry : of_host) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C.
    MustWithoutGil([&](vmmshare_error** error) {
      return vmmshare_weights_write(
          handle.get(), entry->place, 0,
          // NOLINTNEXTLINE(performance-no-int-to-ptr): as DLPack had it.
          reinterpret_cast<const void*>(entry->address), entry->nbytes, error);
    });
  }
  CopyAll(writer, places, addresses, 0, false);
}

void DefineReads(nb::module_& module) {
  nb::class_<Reads>(module, "_Reads")
      .def(nb::init<nb::handle>(), nb::arg("type").none())
      .def("read", &Reads::Read, nb::arg("name"), nb::arg("array"))
      .def("read_all", &Reads::ReadAll, nb::arg("arrays"))
      .def("say", &Reads::Say, nb::arg("name"), nb::arg("storage"),
           nb::arg("offset"), nb::arg("dtype").none(), nb::arg("shape"),
           nb::arg("strides").none() = nb::none())
      .def("rows", &Reads::Rows)
      .def("loose", &Reads::Loose)
      .def("lay_out", &Reads::LayOut, nb::arg("layout"), nb::arg("apart"))
      .def("own", &Reads::Own)
      .def("copy_to", &Reads::CopyTo, nb::arg("writer"));
}

}  // namespace vmm::python
