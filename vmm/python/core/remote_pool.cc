#include "vmm/python/core/remote_pool.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/bytes_like.h"
#include "vmm/python/core/opening.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {

[[noreturn]] void RefuseTicket(const Refusal& refusal) {
  Raise(refusal.status, ("not a usable ticket: " + refusal.why).c_str(),
        refusal.status == VMMSHARE_UNIMPLEMENTED
            ? "Update it to the owner's."
            : "It was damaged, cut, or not made by vmmshare; send it again.");
}

void CheckFits(const Layout& layout, const Storage& storage) {
  std::string wrong = WhyOutside(layout, storage.size);
  if (wrong.empty()) return;
  RefuseTicket(Malformed(std::move(wrong)));
}

Located RemotePool::Where(std::uint64_t address) {
  auto after = located_.upper_bound(address);
  if (after != located_.begin()) {
    const Located& found = std::prev(after)->second;
    if (address - found.base < found.size) return found;
  }
  const Located found = Locate(driver_.get(), address, opened_for_);
  if (!found.on_host) located_.insert_or_assign(found.base, found);
  return found;
}

std::vector<std::shared_ptr<Storage>> RemotePool::Import(
    const std::uint8_t* tickets, std::size_t count, std::int64_t timeout_ns) {
  const std::shared_ptr<vmmshare_imported_pool> pool = handle.shared();
  std::vector<vmmshare_block*> blocks(count);
  // Memory that is here already takes no wait, and none is begun for it.
  vmmshare_error* error = nullptr;
  vmmshare_status status = vmmshare_imported_pool_import(
      pool.get(), tickets, count, 0, blocks.data(), &error);
  if (status == VMMSHARE_DEADLINE_EXCEEDED) {
    if (timeout_ns <= 0) RaiseTimedOut(timeout_ns, error);
    vmmshare_error_free(error);
    WaitInSlices(timeout_ns, [&](std::int64_t slice, vmmshare_error** why) {
      return vmmshare_imported_pool_import(pool.get(), tickets, count, slice,
                                           blocks.data(), why);
    });
  } else if (status != VMMSHARE_OK) {
    Raise(status, error);
  }
  std::vector<std::shared_ptr<Storage>> storages;
  storages.reserve(count);
  // Each owns its block; where one lives is known once all are owned.
  for (vmmshare_block* block : blocks) {
    storages.push_back(std::make_shared<ImportedBlock>(block, pool));
  }
  for (const std::shared_ptr<Storage>& storage : storages) {
    const Located at = Where(storage->address);
    storage->place = PlaceOf(at.on_host, at.device, !writable_);
  }
  return storages;
}

namespace {

// The largest value that a fence reaches: Fence.wait() refuses what is above.
constexpr std::int64_t kMaxFenceValue = (std::int64_t{1} << 48) - 1;

using FenceValue = nb::typed<nb::object, int>;  // Or None.

// ValueError for a value that no fence reaches, for which whoever takes the array
// would fail.
std::uint64_t ValueOf(nb::handle given) {
  const auto exact = Steal(PyNumber_Index(given.ptr()));
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(exact.ptr(), &overflow);
  if (overflow == 0 && 0 <= value && value <= kMaxFenceValue) {
    return static_cast<std::uint64_t>(value);
  }
  throw nb::value_error(("value " + Utf8(nb::str(exact)) +
                         " is none that a fence reaches: expected 0 to " +
                         std::to_string(kMaxFenceValue))
                            .c_str());
}

// Null for none. TypeError for what is no fence, or no value. ValueError for a
// fence without a value or a value without a fence, which would order nothing.
const Fence* FenceOf(nb::handle fence, nb::handle value) {
  if (!fence.is_none() && !nb::isinstance<Fence>(fence)) {
    RefuseType("fence", fence, "a Fence");
  }
  if (!value.is_none() && PyIndex_Check(value.ptr()) == 0) {
    RefuseType("value", value, "an int");
  }
  if (fence.is_none()) {
    if (value.is_none()) return nullptr;
    throw nb::value_error(("value " + Utf8(nb::str(value)) +
                           " without a fence orders nothing: expected fence "
                           "and value both, or neither")
                              .c_str());
  }
  if (value.is_none()) {
    throw nb::value_error(
        "a fence without a value orders nothing: expected fence and value "
        "both, or neither. Pass the value that the fence has once the contents "
        "are complete.");
  }
  return &nb::cast<const Fence&>(fence);
}

Object<Array> Open(RemotePool& self, const BytesLike& bytes, nb::handle timeout,
                   nb::handle fence, const FenceValue& value) {
  const Fence* const after = FenceOf(fence, value);
  const std::uint64_t reached = after == nullptr ? 0 : ValueOf(value);
  std::string_view rest = bytes;
  ArrayTicket ticket;
  const Refusal wrong = DecodeArrayTicket(&rest, &ticket);
  if (wrong.status != VMMSHARE_OK) RefuseTicket(wrong);
  if (!rest.empty()) {
    RefuseTicket(
        Malformed(std::to_string(rest.size()) + " bytes follow its end"));
  }
  const auto storages = self.Import(ticket.block, 1, NanosecondsOf(timeout));
  CheckFits(ticket.layout, *storages.front());
  Object<Array> array = MakeArray(storages.front(), std::move(ticket.layout));
  if (after != nullptr) {
    nb::cast<Array&>(array).After(after->handle.shared(), after->pool, reached);
  }
  return array;
}

std::string Weakness(const RemotePool& self) {
  return MadeText(self.handle, &vmmshare_imported_pool_weakness);
}

nb::typed<nb::list, int> Recalled(const RemotePool& self) {
  std::vector<std::uint64_t> addresses(16);
  for (;;) {
    std::size_t count = 0;
    Must([&](vmmshare_error** error) {
      return vmmshare_imported_pool_recalled(
          self.handle.get(), addresses.data(), addresses.size(), &count, error);
    });
    const bool all = count <= addresses.size();
    addresses.resize(count);
    if (all) break;
  }
  nb::typed<nb::list, int> list;
  for (const std::uint64_t address : addresses) list.append(address);
  return list;
}

// What has been asked back since `seen`, which the next call is given.
std::uint64_t WaitRecalled(const RemotePool& self, std::uint64_t seen,
                           nb::handle timeout) {
  const auto pool = self.handle.shared();
  WaitInSlices(NanosecondsOf(timeout),
               [&](std::int64_t slice, vmmshare_error** error) {
                 return vmmshare_imported_pool_wait_recalled(pool.get(), &seen,
                                                             slice, error);
               });
  return seen;
}

Object<RemotePool> OpenPool(const std::string& text, bool writable,
                            nb::handle timeout, nb::handle device) {
  auto driver = DefaultDriver();
  const ImportChoice choice(writable, device);
  auto pool = OpenByText<vmmshare_imported_pool>(driver, ImportedPoolCloser(),
                                                 &vmmshare_imported_pool_open,
                                                 text, choice, timeout);
  return Give(new RemotePool(std::move(driver), std::move(pool), writable,
                             choice.ordinal()));
}

}  // namespace

void DefineRemotePool(nb::module_& module) {
  nb::class_<RemotePool> type(
      module, "RemotePool", nb::is_weak_referenceable(),
      "The pool of another process, from connect(). What is opened is not used "
      "again by its\nowner until it is gone here, or this process has ended.");
  type.def("open", &Open, nb::arg("ticket"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           nb::arg("fence").none() = nb::none(), nb::arg("value") = nb::none(),
           "The array of a ticket. `timeout` in seconds, None for ever, for "
           "memory that is on\nits way. `fence` and `value`: its contents are "
           "complete when the fence has reached\nthat; whoever takes the array "
           "waits for it, a consumer with a stream on its stream.\n\n"
           "InvalidArgument: no ticket, or of another pool. "
           "FailedPrecondition: the array is\ngone. Unavailable: the owner "
           "ended before its memory came. ValueError: `fence` or\n`value` "
           "alone, or a value that no fence reaches.")
      .def_prop_ro("writable", &RemotePool::writable)
      .def_prop_ro(
          "weakness", &Weakness,
          "What is weaker about the memory that came from it than about "
          "memory of cuMemCreate();\n\"\" if nothing is.")
      .def(
          "check",
          [](const RemotePool& self) {
            Must([&](vmmshare_error** error) {
              return vmmshare_imported_pool_connection(self.handle.get(),
                                                       error);
            });
          },
          "Raises Unavailable once the owner has ended, or has closed the pool "
          "and all of its arrays;\nnot when it closed a Share. What is open "
          "stays.")
      .def("recalled", &Recalled,
           "The addresses (Array.ptr) of what the owner wants back.")
      .def("_wait_recalled", &WaitRecalled, nb::arg("seen"),
           nb::arg("timeout").none());
  DefineSets(module, type);
  DefineClosing(type, "Opens no more. What is open keeps its memory.");
  module.def("_open_pool", &OpenPool, nb::arg("text"), nb::arg("writable"),
             nb::arg("timeout").none(), nb::arg("device").none());
}

}  // namespace vmm::python
