#include "vmm/python/core/keeper.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "vmm/python/core/handles.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/path.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct Keeper {
  Holder<vmmshare_keeper> handle;
  bool busy = false;  // The GIL guards it.
};

// Runs `call`, which waits on a thread: the connection is for one at a time. It
// is closed when a signal leaves that thread behind with it, and when the keeper
// did not answer in time, for then the next answer would be the last call's;
// lock() alone, which waits for others, keeps it.
template <typename Call>
auto Wait(Keeper& self, bool keeps_after_deadline, const Call& call) {
  if (self.busy) {
    Raise(VMMSHARE_FAILED_PRECONDITION,
          "another thread has a call on this Keeper in progress",
          "It is for one call at a time: connect once for each thread.");
  }
  struct Busy {
    explicit Busy(bool* is_busy) : busy(is_busy) { *busy = true; }
    ~Busy() { *busy = false; }
    bool* const busy;
  };
  const Busy busy(&self.busy);
  try {
    return call();
  } catch (nb::python_error& raised) {
    const nb::object errors = nb::module_::import_("vmmshare.errors");
    const bool answered =
        raised.matches(errors.attr("VmmshareError")) &&
        (keeps_after_deadline || !raised.matches(PyExc_TimeoutError));
    if (!answered) self.handle.Close();
    throw;
  }
}

using NamedCall = vmmshare_status (*)(vmmshare_keeper*, const char*,
                                      std::int64_t, vmmshare_error**);

template <NamedCall named>
void CallByName(Keeper& self, const std::string& name, nb::handle timeout) {
  WithoutNul(name);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  Wait(self, named == &vmmshare_keeper_lock, [&] {
    MustOnAThread([keeper = self.handle.shared(), name,
                   timeout_ns](vmmshare_error** error) {
      return named(keeper.get(), name.c_str(), timeout_ns, error);
    });
  });
}

void Connect(Keeper* self, const PathLike& path, nb::handle timeout) {
  const std::string address = PathOf(path, "address");
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  new (self) Keeper{Holder<vmmshare_keeper>(ConnectOnAThread<vmmshare_keeper>(
      &vmmshare_keeper_close, timeout_ns,
      [address](std::int64_t round_ns, vmmshare_keeper** made,
                vmmshare_error** error) {
        return vmmshare_keeper_connect(
            address.empty() ? nullptr : address.c_str(), round_ns, made, error);
      }))};
}

void Put(Keeper& self, const std::string& name, const Allocation& memory,
         nb::handle timeout) {
  WithoutNul(name);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  Wait(self, false, [&] {
    MustOnAThread([keeper = self.handle.shared(), name, timeout_ns,
                   own = memory.handle.shared()](vmmshare_error** error) {
      return vmmshare_keeper_put(keeper.get(), name.c_str(), own.get(),
                                 timeout_ns, error);
    });
  });
}

Object<Allocation> Attach(Keeper& self, const std::string& name, bool writable,
                          nb::handle timeout, nb::handle device) {
  WithoutNul(name);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  const ImportChoice choice(writable, device);
  auto memory = Wait(self, false, [&] {
    return MakeOnAThread(
        &vmmshare_memory_close,
        [keeper = self.handle.shared(), driver = DefaultDriver(), name, choice,
         timeout_ns](vmmshare_memory** made, vmmshare_error** error) {
          const vmmshare_import_options options = choice.options();
          return vmmshare_keeper_attach(keeper.get(), name.c_str(),
                                        driver.get(), &options, timeout_ns,
                                        made, error);
        });
  });
  return Give(new Allocation{Holder<vmmshare_memory>(std::move(memory)),
                             !writable, choice.ordinal()});
}

nb::object List(Keeper& self, nb::handle timeout) {
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  const auto text = Wait(self, false, [&] {
    return MakeOnAThread(
        &vmmshare_text_free, [keeper = self.handle.shared(), timeout_ns](
                                 vmmshare_text** made, vmmshare_error** error) {
          return vmmshare_keeper_list(keeper.get(), timeout_ns, made, error);
        });
  });
  return FromJson(vmmshare_text_get(text.get()));
}

}  // namespace

void CallKeeper(
    nb::handle keeper,
    const std::function<void(const std::shared_ptr<vmmshare_keeper>&)>& call) {
  Keeper& self = nb::cast<Keeper&>(keeper);
  Wait(self, false, [&] { call(self.handle.shared()); });
}

void DefineKeeper(nb::module_& module) {
  nb::class_<Keeper> type(
      module, "Keeper",
      "A connection to `vmmshare keep`, which holds memory under a name beyond "
      "the process\nthat created it. One call at a time, or "
      "FailedPrecondition. "
      "Every `timeout` is in\nseconds, None for ever; after Ctrl-C the "
      "connection is closed, and after DeadlineExceeded\nof any call but "
      "lock().");
  type.def(
          "__init__", &Connect, nb::arg("address") = "", nb::kw_only(),
          nb::arg("timeout").none() = 10.0,
          "`address`: of its socket; this user's own keeper if empty. NotFound "
          "when none\nlistens there.")
      .def("put", &Put, nb::arg("name"), nb::arg("allocation"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           "Has it hold the memory too; this connection has the writer lock "
           "then.\nAlreadyExists when the name is taken.")
      .def("attach", &Attach, nb::arg("name"), nb::kw_only(),
           nb::arg("writable") = false, nb::arg("timeout").none() = 10.0,
           nb::arg("device").none() = nb::none(),
           "The Allocation under a name. `device` as of connect(). NotFound "
           "when there is none;\nFailedPrecondition for a writable one of "
           "sealed "
           "memory.")
      .def("seal", &CallByName<&vmmshare_keeper_seal>, nb::arg("name"),
           nb::kw_only(), nb::arg("timeout").none() = 10.0,
           "Read-only from now on: the contents are complete. Only by the "
           "writer.")
      .def("lock", &CallByName<&vmmshare_keeper_lock>, nb::arg("name"),
           nb::kw_only(), nb::arg("timeout").none() = 10.0,
           "Takes the writer lock, waiting for whoever has it.")
      .def("unlock", &CallByName<&vmmshare_keeper_unlock>, nb::arg("name"),
           nb::kw_only(), nb::arg("timeout").none() = 10.0,
           "Gives the writer lock back.")
      .def("drop", &CallByName<&vmmshare_keeper_drop>, nb::arg("name"),
           nb::kw_only(), nb::arg("timeout").none() = 10.0,
           "Forgets the name. Who has it attached keeps it.")
      // Within the class `list` is this.
      .def("list", &List, nb::kw_only(), nb::arg("timeout").none() = 10.0,
           nb::sig("def list(self, *, timeout: object | None = 10.0) "
                   "-> typing.List[dict[str, typing.Any]]"),
           "Everything kept, by name: a list of dicts.");
  DefineClosing(type, "Gives back the writer locks that it gained.");
}

}  // namespace vmm::python
