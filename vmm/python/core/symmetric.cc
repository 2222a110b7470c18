#include <nanobind/stl/string.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/collective.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct Symmetric {
  Holder<vmmshare_symmetric> handle;
  // Of this rank: it has access to all parts, wherever they lie.
  int device = 0;
  int rank = 0;
  int size = 1;
};

class SymmetricPart final : public Storage {
 public:
  SymmetricPart(std::shared_ptr<vmmshare_symmetric> from, std::uint64_t first,
                Place where)
      : Storage(first, vmmshare_symmetric_size(from.get()), where),
        from_(std::move(from)) {}

 private:
  const std::shared_ptr<vmmshare_symmetric> from_;
};

// The device of this rank; or what was raised for it, and its words.
struct MaybeDevice {
  std::shared_ptr<vmmshare_device> handle;
  std::exception_ptr raised;
  std::string words;
};

MaybeDevice TryDeviceOf(nb::handle device) {
  try {
    return {DeviceOf(device), nullptr, {}};
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return {nullptr, std::current_exception(), Utf8(nb::str(error.value()))};
  } catch (const nb::builtin_exception& error) {
    return {nullptr, std::current_exception(), error.what()};
  }
}

void Create(Symmetric* self, nb::handle device, UInt64<"nbytes"> nbytes,
            nb::handle exchange, const std::string& scope, nb::handle timeout) {
  const Ranks ranks = RanksOf(exchange);
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  // A rank without a device takes part: the others wait for it.
  const MaybeDevice on = TryDeviceOf(device);
  std::shared_ptr<void> made;
  try {
    made = RunCollective(
        exchange, ranks, scope,
        [handle = on.handle, words = on.words, size = std::uint64_t{nbytes},
         timeout_ns](const vmmshare_exchange& calls, Outcome& outcome) {
          auto options = Sized<vmmshare_symmetric_options>();
          options.size = size;
          options.no_device = words.c_str();
          vmmshare_symmetric* memory = nullptr;
          outcome.status =
              vmmshare_symmetric_create(handle.get(), &calls, &options,
                                        timeout_ns, &memory, &outcome.error);
          outcome.made = {memory, &vmmshare_symmetric_close};
        });
  } catch (const nb::python_error& error) {
    if (on.raised == nullptr || !error.matches(PyExc_Exception)) throw;
  }
  if (on.raised != nullptr) std::rethrow_exception(on.raised);
  new (self) Symmetric{Holder<vmmshare_symmetric>(
                           std::static_pointer_cast<vmmshare_symmetric>(made)),
                       vmmshare_device_ordinal(on.handle.get()), ranks.rank,
                       ranks.size};
}

std::uint64_t AddressOf(const Symmetric& self, int rank) {
  const std::uint64_t address =
      vmmshare_symmetric_address(self.handle.get(), rank);
  if (address == 0) {
    throw nb::index_error(("there is no rank " + std::to_string(rank) + " of " +
                           std::to_string(self.size))
                              .c_str());
  }
  return address;
}

Object<Array> ArrayOf(const Symmetric& self, int rank, nb::handle shape,
                      nb::handle dtype, UInt64<"offset"> offset) {
  const std::uint64_t address = AddressOf(self, rank);
  // Whoever takes the array works on the device that it names.
  const Place place{{kDLCUDA, self.device}, false};
  return ArrayIn(
      std::make_shared<SymmetricPart>(self.handle.shared(), address, place),
      shape, dtype, offset);
}

std::uint64_t Allocate(const Symmetric& self, UInt64<"nbytes"> nbytes,
                       UInt64<"alignment"> alignment) {
  std::uint64_t offset = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_symmetric_allocate(self.handle.get(), nbytes, alignment,
                                       &offset, error);
  });
  return offset;
}

void Free(const Symmetric& self, UInt64<"offset"> offset) {
  Must([&](vmmshare_error** error) {
    return vmmshare_symmetric_free(self.handle.get(), offset, error);
  });
}

void CheckAgreed(const Symmetric& self, nb::handle exchange,
                 const std::string& scope, nb::handle timeout) {
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  RunCollective(exchange, RanksOf(exchange), scope,
                [memory = self.handle.shared(), timeout_ns](
                    const vmmshare_exchange& calls, Outcome& outcome) {
                  outcome.status = vmmshare_symmetric_check_agreed(
                      memory.get(), &calls, timeout_ns, &outcome.error);
                });
}

}  // namespace

void DefineSymmetric(nb::module_& module) {
  nb::class_<Symmetric> type(
      module, "SymmetricMemory",
      "The same amount of memory of every rank's GPU, mapped by all ranks.");
  type.def("__init__", &Create, nb::arg("device"), nb::arg("nbytes"),
           nb::arg("exchange"), nb::kw_only(), nb::arg("scope") = "",
           nb::arg("timeout").none() = 60.0,
           "Collective: every rank calls it with the same `nbytes`. "
           "`exchange`: vmmshare.job.mpi(),\nvmmshare.job.torch_distributed(), "
           "or an object with `rank`, `size`, put(key, bytes),\nfence(seconds) "
           "and get(rank, key), which raises LookupError for what there is "
           "not.\n`scope`: for a second one over the same store. `timeout`: "
           "half of it is for all ranks to\ncome. DeadlineExceeded names the "
           "rank that did not; what the exchange raises is raised.\nA rank "
           "whose timeout passes while all tell the outcome fails, and others "
           "may succeed. A rank\nthat cannot have its `device` takes part all "
           "the same: it raises why, and the others are told.")
      .def_ro("rank", &Symmetric::rank)
      .def_ro("size", &Symmetric::size, "How many ranks there are.")
      .def_prop_ro("nbytes",
                   [](const Symmetric& self) {
                     return vmmshare_symmetric_size(self.handle.get());
                   })
      .def("ptr", &AddressOf, nb::arg("rank"),
           "Where this process has that rank's memory.")
      .def("array", &ArrayOf, nb::arg("rank"), nb::arg("shape"),
           nb::arg("dtype").none(), nb::arg("offset") = 0,
           "A typed view of that rank's memory, which it keeps.")
      .def("allocate", &Allocate, nb::arg("nbytes"), nb::arg("alignment") = 256,
           "The offset of a buffer in every rank's memory, for array(), "
           "without a word between\nthe ranks: each makes the same calls of "
           "allocate() and free() in the same order.\nResourceExhausted, on "
           "every rank alike, when no free range is so large.")
      .def("free", &Free, nb::arg("offset"),
           "The buffer's memory may be handed out again: have the ranks meet "
           "first, for streams\nof others may still use it. NotFound when "
           "none begins there.")
      .def("check_agreed", &CheckAgreed, nb::arg("exchange"), nb::kw_only(),
           nb::arg("scope") = "", nb::arg("timeout").none() = 60.0,
           "Collective: FailedPrecondition, with the ranks and what each did, "
           "unless all made the\nsame calls of allocate() and free().");
  DefineClosing(type,
                "Unmaps all, once arrays of it have gone: synchronise, and "
                "meet, first.");
}

}  // namespace vmm::python
