// Many arrays at once: one call, one bytes object, one ticket a block.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vmm/python/core/array.h"
#include "vmm/python/core/array_set.h"
#include "vmm/python/core/bytes_like.h"
#include "vmm/python/core/exchange.h"
#include "vmm/python/core/foreign.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/remote_pool.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

std::string_view NameOf(nb::handle name) {
  if (!nb::isinstance<nb::str>(name)) {
    RefuseType("the name " + Utf8(nb::repr(name)), name, "a str");
  }
  return Utf8View(name);
}

nb::object NameOf(const SetEntry& entry) {
  PyObject* const name = PyUnicode_DecodeUTF8(
      entry.name.data(), static_cast<Py_ssize_t>(entry.name.size()), nullptr);
  if (name == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) {
      throw nb::python_error();  // MemoryError.
    }
    PyErr_Clear();
    RefuseTicket(Malformed("a name is no UTF-8"));
  }
  return nb::steal(name);
}

nb::bytes BytesOf(SetWriter& set) {
  const std::string bytes = set.Finish();
  return nb::bytes(bytes.data(), bytes.size());
}

// For an array that has no memory, where it would be.
std::uint64_t MarkOfEmpty(std::uint64_t address, const DLDevice& device) {
  if (address != 0 || device.device_type != kDLCUDA) return 0;
  return MarkOf(DeviceOf(nb::int_(device.device_id)).get());
}

nb::bytes Ticket(nb::handle object) {
  if (nb::isinstance<Array>(object)) {
    return nb::cast<nb::bytes>(object.attr("ticket")());
  }
  ArrayTicket ticket;
  DLDevice device{};
  const std::uint64_t address =
      ReadForeign("the array", object, &ticket.layout, &device);
  if (address == 0) {
    throw nb::value_error(
        "the array has no elements, and so no memory that a ticket could name; "
        "share_all() takes such ones");
  }
  std::uint32_t which = 0;
  std::size_t blocks = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_tickets_around(&address, 1, ticket.block, &which,
                                   &ticket.layout.offset, &blocks, error);
  });
  const std::string bytes = EncodeArrayTicket(ticket);
  return nb::bytes(bytes.data(), bytes.size());
}

// What is asked of the arrays, or another thread, may change the program's own.
nb::dict CopyOf(const nb::mapping& arrays) {
  // A list says that it is a mapping, too.
  if (!nb::hasattr(arrays, "keys")) {
    RefuseType("the arrays", arrays, "a dict, or another mapping, by name");
  }
  nb::dict copy;
  if (PyDict_Update(copy.ptr(), arrays.ptr()) != 0) throw nb::python_error();
  return copy;
}

nb::bytes PackArrays(const nb::mapping& given) {
  const nb::dict arrays = CopyOf(given);
  SetWriter set;
  Layout layout;
  DLDevice device{};
  for (const auto [name, object] : arrays) {
    if (!nb::isinstance<Array>(object)) {
      const std::uint64_t address = ReadForeign("array " + Utf8(nb::repr(name)),
                                                object, &layout, &device);
      set.Add(NameOf(name), address, layout, MarkOfEmpty(address, device));
      continue;
    }
    const Array& array = nb::cast<const Array&>(object);
    CheckHasTicket(array);
    // An empty one may begin where its block ends.
    const bool empty = array.layout().elements() == 0;
    set.Add(NameOf(name), empty ? array.storage()->address : array.address(),
            array.layout());
  }
  return BytesOf(set);
}

nb::bytes PackTensors(const nb::mapping& given, nb::handle type) {
  const nb::dict tensors = CopyOf(given);
  TensorClass read(type);
  SetWriter set;
  Layout layout;
  DLDevice device{};
  for (const auto [name, tensor] : tensors) {
    read.CheckType(name, tensor);
    const std::uint64_t address =
        read.ReadNamed(name, tensor, &layout, &device);
    read.CheckNotLazy(name, tensor, layout.dtype);
    set.Add(NameOf(name), address, layout, MarkOfEmpty(address, device));
  }
  return BytesOf(set);
}

void Refuse(const Refusal& refusal) {
  if (refusal.status != VMMSHARE_OK) RefuseTicket(refusal);
}

// One that is not seen here is the first: such an array has no memory.
DLDevice PlaceOfMark(std::uint64_t mark) {
  if (mark == 0) return {kDLCPU, 0};
  for (const auto& device : AllDevices()) {
    if (MarkOf(device.get()) == mark) {
      return {kDLCUDA, vmmshare_device_ordinal(device.get())};
    }
  }
  return {kDLCUDA, 0};
}

// Calls `prepare(storages)`, and `take(entry, storage)` for each array.
template <typename Prepare, typename Take>
void ReadSet(RemotePool& pool, const BytesLike& bytes, nb::handle timeout,
             const Prepare& prepare, const Take& take) {
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  SetReader set;
  Refuse(set.Start(bytes));
  const std::vector<std::shared_ptr<Storage>> storages =
      pool.Import(set.tickets(), set.blocks(), timeout_ns);
  prepare(storages);
  SetEntry entry;
  while (set.left() > 0) {
    Refuse(set.Next(&entry));
    const std::shared_ptr<Storage> storage =
        entry.block == SetEntry::kNoBlock
            ? std::make_shared<Storage>(
                  0, 0, Place{PlaceOfMark(entry.device), !pool.writable()})
            : storages[entry.block];
    CheckFits(entry.layout, *storage);
    take(entry, storage);
  }
}

using NamedArrays = nb::typed<nb::list, nb::typed<nb::tuple, nb::str, Array>>;

NamedArrays OpenAll(RemotePool& self, const BytesLike& bytes,
                    nb::handle timeout) {
  NamedArrays list;
  ReadSet(
      self, bytes, timeout, [](const auto&) {},
      [&](const SetEntry& entry, const std::shared_ptr<Storage>& storage) {
        list.append(
            nb::make_tuple(NameOf(entry), MakeArray(storage, entry.layout)));
      });
  return list;
}

// `stream_of(device)` is the stream on which the tensors will be used; the rest as
// TensorMaker has it.
nb::dict OpenTensors(RemotePool& self, const BytesLike& bytes,
                     nb::handle timeout, nb::handle type,
                     nb::handle from_capsule, nb::handle stream_of,
                     nb::handle as_type) {
  const TensorMaker maker(type, from_capsule, as_type);
  nb::dict tensors;
  ReadSet(
      self, bytes, timeout,
      [&](const std::vector<std::shared_ptr<Storage>>& storages) {
        std::map<std::int32_t, void*> streams;
        for (const std::shared_ptr<Storage>& storage : storages) {
          const DLDevice device = storage->place.device;
          if (device.device_type != kDLCUDA) continue;
          const auto [found, is_new] =
              streams.try_emplace(device.device_id, nullptr);
          if (is_new) {
            const auto stream =
                nb::cast<std::intptr_t>(stream_of(device.device_id));
            found->second = NamedStream(reinterpret_cast<void*>(stream));
          }
          storage->UseOn(found->second);
        }
      },
      [&](SetEntry& entry, const std::shared_ptr<Storage>& storage) {
        const nb::object tensor = maker.Make(storage, entry.layout);
        tensors[NameOf(entry)] = tensor;
      });
  return tensors;
}

}  // namespace

void DefineSets(nb::module_& module, nb::class_<RemotePool>& remote_pool) {
  module.def("ticket", &Ticket, nb::arg("array").none(),
             "Array.ticket(), also for what another library has as an array in "
             "memory of an own\nPool: CuPy, Numba, RMM, cuda.core, NumPy. "
             "NotFound for memory elsewhere, ValueError\nfor strides below 0.");
  module.def(
      "share_all", &PackArrays, nb::arg("arrays"),
      "One bytes object for many arrays of own Pools, by name, for "
      "RemotePool.open_all().\nThose in one block share its ticket. "
      "Those of other libraries as for ticket().\nFailedPrecondition for "
      "an Array that is not of an own pool.");
  module.def(
      "_check_tensor",
      [](nb::handle tensor, nb::handle type) {
        const TensorClass read(type);
        read.CheckType(nb::str(""), tensor);
        read.CheckNotLazy(nb::str(""), tensor, nullptr);
      },
      nb::arg("tensor"), nb::arg("type"));
  module.def("_pack_tensors", &PackTensors, nb::arg("tensors"),
             nb::arg("type"));
  remote_pool
      .def("open_all", &OpenAll, nb::arg("tickets"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           "The arrays of share_all(): a list of (name, array). A block goes "
           "back when the last\nof them in it has gone.")
      .def("_open_tensors", &OpenTensors, nb::arg("tickets"),
           nb::arg("timeout").none(), nb::arg("type"), nb::arg("from_capsule"),
           nb::arg("stream_of"), nb::arg("as_type"));
}

}  // namespace vmm::python
