#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/opening.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/path.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Arrays of it stay where they are while it is released.
class RestorableMemory final : public Storage {
 public:
  RestorableMemory(std::shared_ptr<vmmshare_restorable> memory, Place where,
                   std::shared_ptr<const bool> is_filled)
      : Storage(vmmshare_restorable_address(memory.get()),
                vmmshare_restorable_requested_size(memory.get()), where),
        memory_(std::move(memory)),
        is_filled_(std::move(is_filled)) {}

  void CheckIsThere() const override {
    // What fills it may take it before it counts as restored.
    if (vmmshare_restorable_is_released(memory_.get()) == 0 || *is_filled_) {
      return;
    }
    Raise(VMMSHARE_FAILED_PRECONDITION,
          "the array is of memory that is released: nothing is at its "
          "addresses",
          "Call restore() of the Restorable first. What was taken of the array "
          "before release() is good again then, too.");
  }

 private:
  const std::shared_ptr<vmmshare_restorable> memory_;
  const std::shared_ptr<const bool> is_filled_;
};

struct Restorable {
  Holder<vmmshare_restorable> handle;
  Place place;
  // By a program's `fill`. The GIL guards it; arrays of the memory may outlive this.
  std::shared_ptr<bool> is_filled = std::make_shared<bool>(false);
  // How often it came back. A restore may outlive this.
  std::shared_ptr<std::atomic<std::uint64_t>> restores =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

// What `fill` calls would wait for the end of `fill`, and so would what it waits
// for.
void CheckIsNotFilled(const Restorable& self) {
  if (!*self.is_filled) return;
  Raise(VMMSHARE_FAILED_PRECONDITION, "the memory is being filled by restore()",
        "Call it after restore(), not in `fill`.");
}

Place PlaceOfMemory(const vmmshare_restorable* memory, bool readonly) {
  const Located at =
      Locate(DefaultDriver().get(), vmmshare_restorable_address(memory));
  return PlaceOf(at.on_host, at.device, readonly);
}

Object<Restorable> Create(Server& server, nb::handle device,
                          UInt64<"nbytes"> nbytes, nb::handle host_node) {
  const auto serves = server.handle.shared();
  const auto on = DeviceOf(device);
  const vmmshare_memory_options options = MemoryOptions(nbytes, host_node);
  auto made = Make(&vmmshare_restorable_close,
                   [&](vmmshare_restorable** out, vmmshare_error** error) {
                     return vmmshare_restorable_create(serves.get(), on.get(),
                                                       &options, out, error);
                   });
  const Place place = PlaceOfMemory(made.get(), false);
  return Give(
      new Restorable{Holder<vmmshare_restorable>(std::move(made)), place});
}

Object<Restorable> Open(const std::string& text, bool writable,
                        nb::handle timeout, nb::handle device) {
  auto memory = OpenByText<vmmshare_restorable>(
      DefaultDriver(), &vmmshare_restorable_close, &vmmshare_restorable_open,
      text, {writable, device}, timeout);
  const Place place = PlaceOfMemory(memory.get(), !writable);
  return Give(
      new Restorable{Holder<vmmshare_restorable>(std::move(memory)), place});
}

bool IsOwn(const vmmshare_restorable* memory) {
  return vmmshare_restorable_text(memory)[0] != '\0';
}

void Release(const Restorable& self, bool keep, nb::handle timeout) {
  CheckIsNotFilled(self);
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  MustOnAThread([memory = self.handle.shared(), keep,
                 timeout_ns](vmmshare_error** error) {
    const std::uint32_t flags =
        IsOwn(memory.get()) && !keep ? std::uint32_t{VMMSHARE_KEEP_NOTHING} : 0;
    return vmmshare_restorable_release(memory.get(), flags, timeout_ns, error);
  });
}

// What a `fill` of Python's is called by, whether it was, and what it raised.
struct Filler {
  nb::handle call;
  bool* is_called;
  bool was_called = false;
  std::optional<nb::python_error> raised = std::nullopt;
};

vmmshare_status Fill(void* user, std::uint64_t address, std::uint64_t size) {
  auto& filler = *static_cast<Filler*>(user);
  return WithGil::Run([&] {
    *filler.is_called = true;
    filler.was_called = true;
    vmmshare_status status = VMMSHARE_OK;
    try {
      filler.call(address, size);
    } catch (nb::python_error& raised) {
      filler.raised.emplace(std::move(raised));
      status = VMMSHARE_ABORTED;
    }
    *filler.is_called = false;
    return status;
  });
}

// On this thread: what the program calls there raises here.
void RestoreByFill(vmmshare_restorable* memory,
                   vmmshare_restore_options options, Filler filler,
                   std::int64_t timeout_ns) {
  options.fill = &Fill;
  options.user = &filler;
  vmmshare_error* error = nullptr;
  vmmshare_status status = VMMSHARE_OK;
  // Ctrl-C ends the wait for its turn. Once `fill` was called nothing is repeated.
  WaitInSlices(
      timeout_ns,
      [&](std::int64_t slice, vmmshare_error** why) -> vmmshare_status {
        const vmmshare_status now =
            vmmshare_restorable_restore(memory, &options, slice, why);
        if (!filler.was_called) return now;
        status = now;
        error = std::exchange(*why, nullptr);
        return VMMSHARE_OK;
      });
  if (filler.raised.has_value()) {
    vmmshare_error_free(error);
    throw nb::python_error(std::move(*filler.raised));
  }
  if (status != VMMSHARE_OK) Raise(status, error);
}

void Restore(const Restorable& self, nb::handle fill, const PathLike& path,
             UInt64<"offset"> offset, nb::handle timeout) {
  CheckIsNotFilled(self);
  if (offset != 0 && path.is_none()) {
    throw nb::value_error(("offset is " + std::to_string(offset) +
                           ", where a file begins that is read, and no file "
                           "was given: pass path= too")
                              .c_str());
  }
  std::optional<std::string> file;
  if (!path.is_none()) file = PathOf(path, "path");
  const auto memory = self.handle.shared();
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  auto options = Sized<vmmshare_restore_options>();
  options.offset = offset;
  if (!fill.is_none()) {
    if (file.has_value()) options.path = file->c_str();
    RestoreByFill(memory.get(), options,
                  {.call = fill, .is_called = self.is_filled.get()},
                  timeout_ns);
    return;
  }
  // What the call has is its own, for it may go on after Ctrl-C.
  MustOnAThread([memory, options, file, timeout_ns,
                 restores = self.restores](vmmshare_error** error) mutable {
    if (file.has_value()) options.path = file->c_str();
    const vmmshare_status status =
        vmmshare_restorable_restore(memory.get(), &options, timeout_ns, error);
    if (status == VMMSHARE_OK) ++*restores;
    return status;
  });
}

Object<Array> ArrayOf(const Restorable& self, nb::handle shape,
                      nb::handle dtype, UInt64<"offset"> offset) {
  return ArrayIn(std::make_shared<RestorableMemory>(self.handle.shared(),
                                                    self.place, self.is_filled),
                 shape, dtype, offset);
}

std::optional<double> Recalled(const Restorable& self) {
  const auto memory = self.handle.shared();
  std::int64_t return_in_ns = 0;
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_restorable_lease(memory.get(), &return_in_ns, error);
  });
  return RecalledInSeconds(return_in_ns);
}

bool IsReleased(const Restorable& self) {
  return vmmshare_restorable_is_released(self.handle.get()) != 0;
}

}  // namespace

void DefineRestorable(nb::module_& module) {
  nb::class_<Restorable> type(
      module, "Restorable",
      "Memory that goes back to the device for a while and returns at the same "
      "addresses:\nfrom restorable(), or another process's, from "
      "connect_restorable().");
  type.def_prop_ro("ptr",
                   [](const Restorable& self) {
                     return vmmshare_restorable_address(self.handle.get());
                   })
      .def_prop_ro(
          "nbytes",
          [](const Restorable& self) {
            return vmmshare_restorable_requested_size(self.handle.get());
          },
          "Bytes that were asked for.")
      .def_prop_ro("readonly",
                   [](const Restorable& self) { return self.place.readonly; })
      .def_prop_ro(
          "text",
          [](const Restorable& self) -> std::string {
            return vmmshare_restorable_text(self.handle.get());
          },
          "Of own memory: the key to it, for connect_restorable(). The same "
          "all the time, also\nwhile it is released. Otherwise empty.")
      .def_prop_ro("_restores",
                   [](const Restorable& self) { return self.restores->load(); })
      .def_prop_ro("released", &IsReleased, "Whether nothing is there.")
      .def_prop_ro(
          "recalled_in", &Recalled,
          "Of another process's memory: seconds until its owner wants "
          "it back, below 0\nwhen they have passed; None while nobody "
          "asks. Unavailable once the owner has ended,\n"
          "FailedPrecondition while it is released, or another call releases "
          "or restores it.")
      .def("release", &Release, nb::kw_only(), nb::arg("keep") = true,
           nb::arg("timeout").none() = 10.0,
           "Gives the memory back; the addresses stay, and touching them is an "
           "error. All work\non it must have ended. Own memory is recalled "
           "first; `keep`: it is copied to pinned\nmemory of the host. "
           "DeadlineExceeded names who has not let go within `timeout` "
           "seconds,\nor that another release or restore of it goes on, and "
           "nothing has changed. After\nCtrl-C it goes on until then.")
      .def("restore", &Restore, nb::kw_only(),
           nb::arg("fill").none() = nb::none(),
           nb::arg("path").none() = nb::none(), nb::arg("offset") = 0,
           nb::arg("timeout").none() = 10.0,
           "Brings it back at the same addresses. Own memory gets what was "
           "kept, or what a file\nat `path` has from `offset` on, or what "
           "fill(ptr, nbytes) writes there. Another process's\nwaits until its "
           "owner has restored it: ResourceExhausted if that has not after "
           "`timeout`\nseconds, None for ever.\n\n"
           "FailedPrecondition of own memory without `fill` and `path` where "
           "nothing was kept, and for\na release or restore while `fill` runs. "
           "DeadlineExceeded when another release or restore\nof it goes on "
           "until `timeout`, or the owner does not answer. After an exception "
           "it is released\nas before; after Ctrl-C it goes on until then.")
      .def("array", &ArrayOf, nb::arg("shape"), nb::arg("dtype").none(),
           nb::arg("offset") = 0,
           "A typed view from `offset` bytes on, good whenever the memory is "
           "not released: taking it\nthen, by from_dlpack() for example, is "
           "FailedPrecondition. It keeps the memory.\nValueError when it would "
           "leave it.");
  DefineClosing(type, "Lets go of the memory; arrays of it keep it.");
  module.def("_restorable", &Create, nb::arg("server"), nb::arg("device"),
             nb::arg("nbytes"), nb::arg("host_node").none());
  module.def("_open_restorable", &Open, nb::arg("text"), nb::arg("writable"),
             nb::arg("timeout").none(), nb::arg("device").none());
}

}  // namespace vmm::python
