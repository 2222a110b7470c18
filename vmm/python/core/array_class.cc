// Array as a class of the module.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "vmm/python/core/array.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// A view of the array's own bytes, from `from` after its beginning on. An array
// may be a part of its memory: what else is there is not the view's.
Object<Array> View(const Array& array, nb::handle shape, nb::handle dtype,
                   UInt64<"offset"> from) {
  const std::uint64_t offset = from;
  Layout layout = DenseLayout(shape, dtype, offset);
  const std::uint64_t size = array.storage()->size;
  const std::uint64_t needed = SpanBytes(layout).value();
  const std::uint64_t own = SpanBytes(array.layout()).value();
  if (offset > own || needed > own - offset) {
    throw nb::value_error(("no such view: it takes " + std::to_string(needed) +
                           " bytes from " + std::to_string(offset) +
                           " on, and the array has " + std::to_string(own) +
                           "; expected one within the array's own elements")
                              .c_str());
  }
  layout.offset += array.layout().offset;
  const auto itemsize = static_cast<std::uint64_t>(layout.dtype->itemsize());
  if (layout.offset % itemsize != 0) {
    throw nb::value_error(
        ("no such view: " + std::to_string(offset) +
         " bytes into the array are " + std::to_string(layout.offset) +
         " into its memory, which is no multiple of its element's " +
         std::to_string(itemsize))
            .c_str());
  }
  CheckWithin(layout, size);
  return Give(new Array(array.View(std::move(layout))));
}

nb::bytes Ticket(const Array& array) {
  const PoolBlock& block = CheckHasTicket(array);
  ArrayTicket ticket;
  ticket.layout = array.layout();
  Must([&](vmmshare_error** error) {
    return vmmshare_pool_tickets(block.pool.get(), &block.address, 1,
                                 ticket.block, error);
  });
  const std::string bytes = EncodeArrayTicket(ticket);
  return nb::bytes(bytes.data(), bytes.size());
}

std::string Describe(const Array& array) {
  if (array.is_closed()) return "<vmmshare.Array, closed>";
  if (array.is_the_parents()) return "<vmmshare.Array, the parent's>";
  const auto storage = array.storage();
  const Place& place = storage->place;
  const std::string where =
      place.device.device_type == kDLCPU
          ? "host"
          : "device " + std::to_string(place.device.device_id);
  return "<vmmshare.Array " + std::string(array.layout().dtype->name) + " " +
         nb::cast<std::string>(nb::str(TupleOf(array.layout().shape))) + ", " +
         where + (place.readonly ? ", read-only>" : ">");
}

// What lies from `begin` on in dimension `dim`, as NumPy's array[:, begin:begin +
// length] of 1.
Object<Array> Cut(const Array& array, std::size_t dim, std::int64_t begin,
                  std::int64_t length) {
  Layout layout = array.layout();
  if (dim >= layout.shape.size() || begin < 0 || length < 0 ||
      length > layout.shape[dim] || begin > layout.shape[dim] - length) {
    throw nb::value_error(("no " + std::to_string(length) +
                           " elements lie from " + std::to_string(begin) +
                           " on in dimension " + std::to_string(dim) + " of " +
                           Describe(array))
                              .c_str());
  }
  layout.shape[dim] = length;
  // Of one without elements the strides may be any, and so no step is taken.
  if (layout.elements() != 0) {
    layout.offset += static_cast<std::uint64_t>(begin * layout.strides[dim] *
                                                layout.dtype->itemsize());
  }
  CheckWithin(layout, array.storage()->size);
  return Give(new Array(array.View(std::move(layout))));
}

std::optional<double> Recalled(const Array& self) {
  const auto storage = self.storage();
  if (storage->memory() == nullptr) {
    Raise(VMMSHARE_FAILED_PRECONDITION,
          "the array is not of whole memory of another process",
          "Of blocks of a pool RemotePool.recalled() says it.");
  }
  return RecalledIn(storage->memory());
}

}  // namespace

void DefineArray(nb::module_& module) {
  nb::class_<Array>(
      module, "Array", nb::is_weak_referenceable(),
      "A typed view of memory: of a block of a pool, or of an Allocation.\n\n"
      "NumPy (memory of the host), PyTorch, CuPy, JAX, Numba and cuda.core "
      "take "
      "it by\nDLPack, `xp.from_dlpack(array)`, or by __cuda_array_interface__. "
      "The memory goes\nback when the array and all that was made of it are "
      "gone.")
      .def_prop_ro("shape",
                   [](const Array& a) { return TupleOf(a.layout().shape); })
      .def_prop_ro(
          "strides",
          [](const Array& a) {
            return TupleOf(a.layout().strides, a.layout().dtype->itemsize());
          },
          "In bytes.")
      .def_prop_ro(
          "dtype",
          [](const Array& a) { return nb::str(a.layout().dtype->name); },
          "Its name, as NumPy and PyTorch spell it: \"float16\".")
      .def_prop_ro(
          "nbytes",
          [](const Array& a) {
            return a.layout().elements() * a.layout().dtype->itemsize();
          },
          "Bytes of its elements.")
      .def_prop_ro("ndim",
                   [](const Array& a) { return a.layout().shape.size(); })
      .def_prop_ro(
          "size", [](const Array& a) { return a.layout().elements(); },
          "How many elements it has.")
      .def("__len__",
           [](const Array& a) {
             if (a.layout().shape.empty()) {
               throw nb::type_error("an array of no dimensions has no len()");
             }
             return a.layout().shape.front();
           })
      // An empty one is an array, too, and one of no dimensions has no len().
      .def("__bool__", [](const Array&) { return true; })
      .def_prop_ro("ptr", &Array::address,
                   "The address, of the device or host.")
      .def_prop_ro("readonly",
                   [](const Array& a) { return a.storage()->place.readonly; })
      .def_prop_ro(
          "recalled_in", &Recalled,
          "Of open_array()'s, and of whole memory of another process: "
          "seconds until its owner\nwants it back, None while nobody "
          "asks; Unavailable once the owner has ended. Of a\nRemotePool's "
          "see its recalled().")
      .def_prop_ro("closed", &Array::is_closed)
      .def(
          "view", &View, nb::arg("shape"), nb::arg("dtype").none(),
          nb::arg("offset") = 0,
          "Another array in the same memory, `offset` bytes after this array's "
          "own beginning.\nValueError when it would leave this array's "
          "elements; of one with gaps the bytes from\nits first element to the "
          "end of its last one.")
      .def("_cut", &Cut, nb::arg("dim"), nb::arg("begin"), nb::arg("length"))
      .def("_dlpack_unflagged", &MakeUnflaggedCapsule, nb::arg("stream").none())
      .def(
          "_use_on",
          [](const Array& a, std::intptr_t stream) {
            void* const on = NamedStream(OneStreamOf(stream));
            const auto storage = a.storage();
            storage->CheckIsThere();
            a.Order(on);
            storage->UseOn(on);
          },
          nb::arg("stream"))
      .def_prop_ro(
          "_stream",
          [](const Array& a) {
            return reinterpret_cast<std::intptr_t>(a.storage()->stream());
          })
      .def(
          "_await_fence",
          [](const Array& a, nb::handle timeout) {
            a.storage()->CheckIsThere();
            a.Await(NanosecondsOf(timeout));
          },
          nb::arg("timeout").none())
      .def(
          "__reduce__",
          [](const Array&) -> nb::object {
            throw nb::type_error(
                "cannot copy or pickle an Array: its memory is where it is. "
                "Send array.ticket(), and open that by RemotePool.open()");
          },
          nb::sig("def __reduce__(self) -> typing.NoReturn"))
      .def("ticket", &Ticket,
           "Bytes by which a process that is connected opens this array; no "
           "secret.\nFailedPrecondition for an array that is not of an own "
           "pool.")
      .def("close", &Array::Close,
           "Lets go of the memory; what was made of it keeps it.")
      .def(
          "__enter__",
          [](Object<Array> self) {
            nb::cast<const Array&>(self).storage();  // Raises if it was closed.
            return self;
          })
      .def("__exit__", [](Array& a, nb::args) { a.Close(); })
      .def("__repr__", &Describe)
      .def("__dlpack__", &MakeCapsule, nb::kw_only(),
           nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: object | None = None, "
                   "max_version: object | None = None, "
                   "dl_device: object | None = None, "
                   "copy: object | None = None) -> typing.Any"),
           "DLPack's capsule. `stream` is the consumer's: it waits for the "
           "fence that the\narray was opened with, and the memory goes back "
           "after what is on it. For memory of the host\nthis thread waits: "
           "Unavailable once who serves the fence has ended.")
      .def("__array__", &MakeNumPyArray, nb::arg("dtype") = nb::none(),
           nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, "
                   "copy: bool | None = None) "
                   "-> numpy.typing.NDArray[typing.Any]"),
           "NumPy's array of the same memory, of the host. TypeError for "
           "memory of a device and\nfor a dtype that NumPy has not.")
      .def("__dlpack_device__",
           [](const Array& a) {
             const DLDevice device = a.storage()->place.device;
             return nb::make_tuple(device.device_type, device.device_id);
           })
      .def_prop_ro("__cuda_array_interface__", &MakeCudaArrayInterface);
}

}  // namespace vmm::python
