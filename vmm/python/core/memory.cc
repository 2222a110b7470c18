#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "vmm/python/core/array.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/opening.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void Create(Allocation* self, nb::handle device, UInt64<"nbytes"> nbytes,
            nb::handle host_node, bool legacy, const std::string& rdma) {
  const auto on = DeviceOf(device);
  vmmshare_memory_options options = MemoryOptions(nbytes, host_node);
  if (legacy) options.kinds = kOrLegacy;
  options.flags |= RdmaFlag(rdma);
  new (self) Allocation{
      Holder<vmmshare_memory>(
          Make(&vmmshare_memory_close,
               [&](vmmshare_memory** made, vmmshare_error** error) {
                 return vmmshare_memory_create(on.get(), &options, made, error);
               })),
      false};
}

std::shared_ptr<Storage> StorageOf(const Allocation& self) {
  const Located at =
      Locate(DefaultDriver().get(), vmmshare_memory_address(self.handle.get()),
             self.opened_for);
  return std::make_shared<WholeMemory>(
      self.handle.shared(), PlaceOf(at.on_host, at.device, self.readonly));
}

Object<Array> ArrayOf(const Allocation& self, nb::handle shape,
                      nb::handle dtype, UInt64<"offset"> offset) {
  return ArrayIn(StorageOf(self), shape, dtype, offset);
}

Object<Array> StridedArrayOf(const Allocation& self, nb::handle shape,
                             nb::handle strides, nb::handle dtype,
                             std::uint64_t offset) {
  auto storage = StorageOf(self);
  Layout layout{&DTypeOf(dtype), ShapeOf(shape), ShapeOf(strides), offset};
  if (layout.strides.size() != layout.shape.size()) {
    throw nb::value_error("as many strides as lengths were expected");
  }
  CheckWithin(layout, storage->size);
  return MakeArray(std::move(storage), std::move(layout));
}

Object<Allocation> Adopt(UInt64<"ptr"> ptr, UInt64<"nbytes"> nbytes,
                         bool legacy) {
  const auto driver = DefaultDriver();
  const std::uint32_t accept =
      legacy ? VMMSHARE_KIND_LEGACY_IPC | VMMSHARE_KIND_STREAM_POOL : 0;
  return Give(
      new Allocation{Holder<vmmshare_memory>(Make(
                         &vmmshare_memory_close,
                         [&](vmmshare_memory** made, vmmshare_error** error) {
                           return vmmshare_memory_adopt_as(
                               driver.get(), ptr, nbytes, accept, made, error);
                         })),
                     false});
}

std::string Weakness(const Allocation& self) {
  return MadeText(self.handle, &vmmshare_memory_weakness);
}

std::optional<AddressAndSize> Disclosed(const Allocation& self) {
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  vmmshare_memory_disclosed(self.handle.get(), &base, &size);
  if (size == 0) return std::nullopt;
  return AddressAndSize(nb::make_tuple(base, size));
}

Rows PassedOver(const Allocation& self) {
  return JsonOf<Rows>(self.handle, &vmmshare_memory_passed_over);
}

using Pairs = nb::typed<nb::list, nb::typed<nb::list, int>>;

Pairs Neighbours(const Allocation& self) {
  return JsonOf<Pairs>(self.handle, &vmmshare_memory_neighbours);
}

// From memory that the driver knows; returns when it is there.
void CopyInto(const Allocation& self, std::uint64_t from,
              std::uint64_t nbytes) {
  const auto memory = self.handle.shared();
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_memory_write(memory.get(), 0, from, nbytes, error);
  });
}

// Whether the driver knows it.
bool IsKnown(std::uint64_t address) {
  auto info = Sized<vmmshare_pointer_info>();
  Must([&](vmmshare_error** error) {
    return vmmshare_classify(DefaultDriver().get(), address, &info, error);
  });
  return info.kind != VMMSHARE_POINTER_NOT_CUDA;
}

std::string DescribeMemory(const Allocation& self) {
  return Described("Allocation", self.handle, [&](const vmmshare_memory* it) {
    std::ostringstream text;
    text << ", " << vmmshare_memory_requested_size(it) << " bytes at 0x"
         << std::hex << vmmshare_memory_address(it)
         << (self.readonly ? ", read-only" : "");
    return text.str();
  });
}

int DeviceAt(std::uint64_t address) {
  return Locate(DefaultDriver().get(), address).device;
}

Object<Allocation> Open(const std::string& text, bool writable,
                        nb::handle timeout, nb::handle device) {
  const ImportChoice choice(writable, device);
  auto memory =
      OpenByText<vmmshare_memory>(DefaultDriver(), &vmmshare_memory_close,
                                  &vmmshare_memory_open, text, choice, timeout);
  return Give(new Allocation{Holder<vmmshare_memory>(std::move(memory)),
                             !writable, choice.ordinal()});
}

std::optional<double> Recalled(const Allocation& self) {
  return RecalledIn(self.handle.get());
}

Rows Leases(const Allocation& self) {
  const auto memory = self.handle.shared();
  Rows all;
  for (const auto& server : self.Servers()) {
    all.extend(
        FromJson(MadeText([&](vmmshare_text** made, vmmshare_error** error) {
          return vmmshare_server_memory_leases(server.get(), memory.get(), made,
                                               error);
        })));
  }
  return all;
}

void Recall(const Allocation& self, double within) {
  const std::int64_t within_ns = NanosecondsWithin(within);
  const auto memory = self.handle.shared();
  for (const auto& server : self.Servers()) {
    Must([&](vmmshare_error** error) {
      return vmmshare_server_recall(server.get(), memory.get(), within_ns,
                                    error);
    });
  }
}

void WaitReturned(const Allocation& self, nb::handle timeout) {
  const auto memory = self.handle.shared();
  const auto servers = self.Servers();
  WaitInSlices(NanosecondsOf(timeout),
               [&](std::int64_t slice, vmmshare_error** error) {
                 vmmshare_status status = VMMSHARE_OK;
                 for (auto next = servers.begin();
                      next != servers.end() && status == VMMSHARE_OK; ++next) {
                   status = vmmshare_server_wait_memory_returned(
                       next->get(), memory.get(), slice, error);
                 }
                 return status;
               });
}

}  // namespace

std::vector<std::shared_ptr<vmmshare_server>> Allocation::Servers() const {
  std::vector<std::shared_ptr<vmmshare_server>> alive;
  for (const auto& one : servers) {
    if (auto server = one.lock()) alive.push_back(std::move(server));
  }
  return alive;
}

std::optional<double> RecalledIn(const vmmshare_memory* memory) {
  std::int64_t return_in_ns = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_memory_lease(memory, &return_in_ns, error);
  });
  return RecalledInSeconds(return_in_ns);
}

void DefineMemory(nb::module_& module) {
  nb::class_<Allocation> type(
      module, "Allocation", nb::is_weak_referenceable(),
      "Whole memory of a device, or of a NUMA node of the host: created here, "
      "or of\nanother process, from connect() and Keeper.attach().");
  type.def("__init__", &Create, nb::arg("device") = 0, nb::kw_only(),
           nb::arg("nbytes"), nb::arg("host_node") = nb::none(),
           nb::arg("legacy") = false, nb::arg("rdma") = "off",
           "`nbytes` bytes, rounded up to 2 MiB on current devices. "
           "`host_node`: on that NUMA\nnode of the host. `legacy`: of "
           "cudaMalloc(), shared by legacy CUDA IPC, where nothing\nbetter "
           "works; `weakness` says what is weaker then. `rdma`: for network "
           "cards, \"try\" or\n\"require\"; see rdma_capable(). "
           "ResourceExhausted when it does not fit.")
      .def_prop_ro("ptr",
                   [](const Allocation& a) {
                     return vmmshare_memory_address(a.handle.get());
                   })
      .def_prop_ro(
          "nbytes",
          [](const Allocation& a) {
            return vmmshare_memory_requested_size(a.handle.get());
          },
          "Bytes that were asked for.")
      .def_prop_ro("readonly", [](const Allocation& a) { return a.readonly; })
      .def_prop_ro("recalled_in", &Recalled,
                   "Of another process's memory: seconds until its owner wants "
                   "it back, below 0\nwhen they have passed; None while nobody "
                   "asks. Unavailable once the owner has ended.")
      .def("leases", &Leases,
           "Of own memory: who holds it, of those that it was served to. A "
           "list of dicts.")
      .def("recall", &Recall, nb::arg("within"),
           "Asks all of them to let go within so many seconds; waits for none.")
      .def("wait_returned", &WaitReturned, nb::arg("timeout").none() = 10.0,
           "Returns when nobody holds it. `timeout` in seconds, None for ever; "
           "DeadlineExceeded\nnames who still does.")
      .def("array", &ArrayOf, nb::arg("shape"), nb::arg("dtype").none(),
           nb::arg("offset") = 0,
           "A typed view from `offset` bytes on. It keeps the memory. "
           "ValueError when it\nwould leave it.")
      .def("_strided", &StridedArrayOf, nb::arg("shape"), nb::arg("strides"),
           nb::arg("dtype").none(), nb::arg("offset"))
      .def_prop_ro(
          "offset",
          [](const Allocation& a) {
            return vmmshare_memory_offset(a.handle.get());
          },
          "Of adopted memory: at how many bytes of what is shared it begins; "
          "whoever opens it\npasses this to array(). Otherwise 0.");
  type.def_prop_ro(
          "weakness", &Weakness,
          "What is weaker about it than about memory of cuMemCreate(); "
          "\"\" if it is such memory.")
      .def_prop_ro("disclosed", &Disclosed,
                   "(address, bytes) that whoever opens it can reach, with "
                   "all that lies there: of adopted\nmemory whole chunks, of "
                   "weaker memory the driver's whole blocks. None where that "
                   "is\nno more than the memory itself.")
      .def_prop_ro("passed_over", &PassedOver,
                   "Of memory made here: the kinds of handle that it was to "
                   "have and has not, and why. A\nlist of dicts.")
      .def("__repr__", &DescribeMemory)
      .def("neighbours", &Neighbours,
           "Of adopted memory of cudaMalloc(): [address, bytes] of this "
           "process's other allocations\nin what is disclosed. Takes some "
           "ms.");
  module.def(
      "adopt", &Adopt, nb::arg("ptr"), nb::arg("nbytes"), nb::kw_only(),
      nb::arg("legacy") = false,
      "An Allocation of memory that another library made with "
      "cuMemCreate() and mapped at\n`ptr`; a context must be current. "
      "legacy: also of cudaMalloc()'s, and of a stream-ordered\npool's "
      "that was made exportable. Those are weaker, as `weakness` says; "
      "keep them until all\nwho opened them have let go. "
      "FailedPrecondition for other memory: the message says what it\nis "
      "and what to do.");
  module.def("_copy_into", &CopyInto, nb::arg("memory"), nb::arg("address"),
             nb::arg("nbytes"));
  module.def("_device_at", &DeviceAt, nb::arg("address"));
  module.def("_is_known", &IsKnown, nb::arg("address"));
  DefineClosing(type, "Lets go of the memory; arrays of it keep it.");
  module.def("_open_memory", &Open, nb::arg("text"), nb::arg("writable"),
             nb::arg("timeout").none(), nb::arg("device").none());
}

}  // namespace vmm::python
