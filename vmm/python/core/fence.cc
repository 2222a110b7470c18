#include <nanobind/stl/string.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "vmm/python/core/bytes_like.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

Object<Fence> MakeFence(std::shared_ptr<vmmshare_fence> handle,
                        std::shared_ptr<vmmshare_fence_pool> pool) {
  return Give(
      new Fence{std::move(pool), Holder<vmmshare_fence>(std::move(handle))});
}

void CreatePool(FencePool* self, nb::handle device) {
  const auto on = DeviceOf(device);
  new (self) FencePool{Holder<vmmshare_fence_pool>(
      Make(&vmmshare_fence_pool_close,
           [&](vmmshare_fence_pool** made, vmmshare_error** error) {
             return vmmshare_fence_pool_create(on.get(), made, error);
           }))};
}

Object<FencePool> OpenPool(const std::string& text, nb::handle device,
                           nb::handle timeout) {
  WithoutNul(text);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  auto pool = ConnectOnAThread<vmmshare_fence_pool>(
      &vmmshare_fence_pool_close, timeout_ns,
      [on = DeviceOf(device), text](std::int64_t round_ns,
                                    vmmshare_fence_pool** made,
                                    vmmshare_error** error) {
        return vmmshare_fence_pool_open(on.get(), text.c_str(), round_ns, made,
                                        error);
      });
  return Give(new FencePool{Holder<vmmshare_fence_pool>(std::move(pool))});
}

Object<Fence> Create(const FencePool& self) {
  const auto pool = self.handle.shared();
  return MakeFence(Make(&vmmshare_fence_close,
                        [&](vmmshare_fence** made, vmmshare_error** error) {
                          return vmmshare_fence_create(pool.get(), made, error);
                        }),
                   pool);
}

Object<Fence> Open(const FencePool& self, const BytesLike& given,
                   nb::handle timeout) {
  const std::string_view ticket = given;
  if (ticket.size() != VMMSHARE_FENCE_TICKET_BYTES) {
    Raise(VMMSHARE_INVALID_ARGUMENT,
          (std::to_string(ticket.size()) + " bytes are no fence's ticket")
              .c_str(),
          "Pass what Fence.ticket() returned, 48 bytes.");
  }
  const auto pool = self.handle.shared();
  vmmshare_fence* made = nullptr;
  WaitInSlices(
      NanosecondsOf(timeout), [&](std::int64_t slice, vmmshare_error** error) {
        return vmmshare_fence_open(
            pool.get(), reinterpret_cast<const std::uint8_t*>(ticket.data()),
            slice, &made, error);
      });
  return MakeFence(std::shared_ptr<vmmshare_fence>(made, &vmmshare_fence_close),
                   pool);
}

nb::bytes Ticket(const Fence& self) {
  std::uint8_t bytes[VMMSHARE_FENCE_TICKET_BYTES];
  Must([&](vmmshare_error** error) {
    return vmmshare_fence_ticket(self.handle.get(), bytes, error);
  });
  return nb::bytes(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

// `call(fence, error)` without the GIL, for it may wait: for the GPU's answer, or
// for a place on a stream.
template <typename Call>
void Do(const Fence& self, const Call& call) {
  const auto fence = self.handle.shared();
  MustWithoutGil(
      [&](vmmshare_error** error) { return call(fence.get(), error); });
}

// The same for a signal, which is for one thread at a time.
template <typename Call>
void DoInTurn(const Fence& self, const Call& call) {
  Do(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    const std::lock_guard<std::mutex> turn(self.signalling);
    return call(fence, error);
  });
}

void Signal(const Fence& self, std::intptr_t stream, UInt64<"value"> value) {
  void* const on = StreamOf(stream);
  DoInTurn(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    return vmmshare_fence_signal(fence, on, value, error);
  });
}

void Add(const Fence& self, std::intptr_t stream, UInt64<"value"> value) {
  void* const on = StreamOf(stream);
  Do(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    return vmmshare_fence_add(fence, on, value, error);
  });
}

void SignalFromHost(const Fence& self, UInt64<"value"> value) {
  DoInTurn(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    return vmmshare_fence_signal_host(fence, value, error);
  });
}

void Wait(const Fence& self, std::intptr_t stream, UInt64<"value"> value) {
  void* const on = StreamOf(stream);
  Do(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    return vmmshare_fence_wait(fence, on, value, error);
  });
}

// A slice of a wait. A fence whose owner has gone is signalled no more, but may have
// been before.
vmmshare_status WaitASlice(vmmshare_fence* fence,
                           const vmmshare_fence_pool* pool, std::uint64_t value,
                           std::int64_t slice, vmmshare_error** error) {
  const vmmshare_status waited =
      vmmshare_fence_wait_host(fence, value, slice, error);
  if (waited != VMMSHARE_DEADLINE_EXCEEDED || pool == nullptr) return waited;
  vmmshare_error* why = nullptr;
  const vmmshare_status owner = vmmshare_fence_pool_connection(pool, &why);
  if (owner == VMMSHARE_OK) return waited;
  vmmshare_error_free(std::exchange(*error, nullptr));
  if (vmmshare_fence_wait_host(fence, value, 0, nullptr) == VMMSHARE_OK) {
    vmmshare_error_free(why);
    return VMMSHARE_OK;
  }
  *error = why;
  return owner;
}

void WaitOnHost(const Fence& self, UInt64<"value"> value, nb::handle timeout) {
  const auto fence = self.handle.shared();
  const auto pool = self.pool;  // Another thread may close this meanwhile.
  WaitForFence(fence.get(), pool.get(), value, NanosecondsOf(timeout));
}

std::uint64_t Value(const Fence& self) {
  std::uint64_t value = 0;
  Do(self, [&](vmmshare_fence* fence, vmmshare_error** error) {
    return vmmshare_fence_value(fence, &value, error);
  });
  return value;
}

void Abandon(const Fence& self) { Do(self, &vmmshare_fence_abandon); }

}  // namespace

void WaitForFence(vmmshare_fence* fence, const vmmshare_fence_pool* pool,
                  std::uint64_t value, std::int64_t timeout_ns) {
  WaitInSlices(timeout_ns, [&](std::int64_t slice, vmmshare_error** error) {
    return WaitASlice(fence, pool, value, slice, error);
  });
}

void DefineFence(nb::module_& module) {
  nb::class_<FencePool> pool(
      module, "FencePool", nb::is_weak_referenceable(),
      "Where fences come from; serve() serves it, connect_fences() opens it "
      "elsewhere.");
  pool.def("__init__", &CreatePool, nb::arg("device") = 0,
           "Unimplemented where the device has no stream memory operations.")
      .def("new", &Create, "A new fence, of value 0.")
      .def("open", &Open, nb::arg("ticket"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           "The fence of a ticket, in a pool of another process.");
  pool.def(
      "check",
      [](const FencePool& self) {
        Must([&](vmmshare_error** error) {
          return vmmshare_fence_pool_connection(self.handle.get(), error);
        });
      },
      "Raises Unavailable once the process that made it has ended, or has "
      "closed it and all of\nits fences; not when that closed a Share. Fences "
      "that are open go on working.");
  DefineClosing(pool,
                "Makes no more. Its fences stay. When it and they are gone "
                "their memory is unmapped:\nsynchronise the streams that wait "
                "for them or signal them first.");

  nb::class_<Fence> fence(
      module, "Fence",
      "A counter that streams and hosts of several processes signal and wait "
      "for. It begins\nat 0 and only grows.");
  fence
      .def("signal", &Signal, nb::arg("stream"), nb::arg("value"),
           "Reaches `value` once what is on `stream`, a CUstream as an int, is "
           "done.\nFailedPrecondition for a value that is not above the last "
           "one.")
      .def("signal", &SignalFromHost, nb::arg("value"),
           "Without a stream: reaches it now.")
      .def(
          "add", &Add, nb::arg("stream"), nb::arg("value") = 1,
          "Grows by `value` once what is on `stream` is done: for several that "
          "signal one fence and\nhave no order between them. Of an array with "
          "kernels; FailedPrecondition for others.")
      .def(
          "wait", &Wait, nb::arg("stream"), nb::arg("value"),
          "Later work on `stream` waits until it has reached `value`; this "
          "returns at once.\nAborted once it is abandoned. As many streams "
          "that wait at a time as\nCUDA_DEVICE_MAX_CONNECTIONS says, 8 without "
          "it, stop the process's others: docs/ordering.md.")
      .def("wait", &WaitOnHost, nb::arg("value"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           "Without a stream: this thread waits, `timeout` seconds at most, "
           "None for ever.\nUnavailable when it has not reached that, and "
           "check() of its pool raises it: a process\nthat lives, and does not "
           "signal it nor close it, is waited for.")
      .def_prop_ro("value", &Value, "Aborted once it is abandoned.")
      .def("ticket", &Ticket, "48 bytes by which another process opens it.")
      .def("abandon", &Abandon,
           "Lets go of all that wait for it, in all processes, for good.");
  DefineClosing(fence,
                "Gives it back. With its pool it takes its memory along: see "
                "FencePool.close().");

  module.def("_open_fences", &OpenPool, nb::arg("text"), nb::arg("device"),
             nb::arg("timeout").none());
}

}  // namespace vmm::python
