// The two ends of a ring; vmmshare/_ring.py makes classes of them.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/detach.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/turns.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct RingHome {
  Holder<vmmshare_ring_home> handle;
};

// The socket of a ring: what owns it before anything else is looked at, so that
// the other end is told when a ring cannot be made.
struct Channel {
  Holder<vmmshare_channel> handle;
};

struct Ring {
  Holder<vmmshare_ring> handle;
  std::shared_ptr<vmmshare_driver> driver;
  bool readonly = false;
  // A reader's, which has access to the buffers, wherever they lie.
  std::optional<int> device = std::nullopt;
  // A ring is for one thread at a time. A turn is for a slice of a wait: another
  // thread's call may be what makes it end.
  std::shared_ptr<Turns> turns = std::make_shared<Turns>();
  MadeHere made = {};
};

// Keeps a ring. Closing it waits for the GPU, and whoever lets go of it last may
// hold the GIL: so a thread of its own does. Where there is none, here.
class KeptRing {
 public:
  explicit KeptRing(std::shared_ptr<vmmshare_ring> ring)
      : ring_(std::move(ring)) {}
  ~KeptRing() {
    if (ring_.use_count() > 1) return;
    try {
      Detach("vmmshare-free", [ring = std::move(ring_)] {});
    } catch (const std::system_error&) {
    }
  }
  KeptRing(const KeptRing&) = delete;
  KeptRing& operator=(const KeptRing&) = delete;

  vmmshare_ring* get() const { return ring_.get(); }

 private:
  std::shared_ptr<vmmshare_ring> ring_;
};

// A buffer, which is there as long as its ring.
class RingMemory final : public Storage {
 public:
  RingMemory(std::shared_ptr<vmmshare_ring> ring, std::uint64_t first,
             std::uint64_t bytes, Place where)
      : Storage(first, bytes, where), ring_(std::move(ring)) {}

 private:
  const KeptRing ring_;
};

using Item = nb::typed<nb::tuple, int, int, int, int>;

Item ItemOf(const vmmshare_ring_buffer& buffer) {
  return Item(
      nb::make_tuple(buffer.address, buffer.size, buffer.tag, buffer.number));
}

vmmshare_ring_buffer BufferOf(nb::handle item) {
  return {sizeof(vmmshare_ring_buffer), nb::cast<std::uint64_t>(item[0]),
          nb::cast<std::uint64_t>(item[1]), nb::cast<std::uint64_t>(item[2]),
          nb::cast<std::uint64_t>(item[3])};
}

// WaitInSlices() with a turn for each slice.
template <typename Call>
void WaitInTurns(const Ring& self, std::int64_t timeout_ns, const Call& call) {
  Turns::Place place(*self.turns);
  WaitInSlices(
      timeout_ns,
      [&](std::int64_t slice, vmmshare_error** error) -> vmmshare_status {
        const auto begin = std::chrono::steady_clock::now();
        if (!place.Take(std::chrono::nanoseconds(slice))) {
          return VMMSHARE_DEADLINE_EXCEEDED;
        }
        const std::int64_t left = LeftOf(slice, begin);
        const vmmshare_status status =
            call(std::min(left, self.turns->SliceNs()), error);
        place.Give();
        return status;
      });
}

void Create(RingHome* self, nb::handle device, nb::handle host_node) {
  const auto on = DeviceOf(device);
  auto options = Sized<vmmshare_pool_options>();
  PutOnHost(options, host_node);
  new (self) RingHome{Holder<vmmshare_ring_home>(
      Make(&vmmshare_ring_home_close,
           [&](vmmshare_ring_home** made, vmmshare_error** error) {
             return vmmshare_ring_home_create(on.get(), &options, made, error);
           }))};
}

void AdoptChannel(Channel* self, std::intptr_t descriptor) {
  new (self) Channel{Holder<vmmshare_channel>(
      Make(&vmmshare_channel_close,
           [&](vmmshare_channel** made, vmmshare_error** error) {
             return vmmshare_channel_adopt(descriptor, made, error);
           }))};
}

Object<Ring> OpenWriter(const RingHome& self, const Channel& connection,
                        std::uint32_t buffers, UInt64<"nbytes"> nbytes,
                        nb::handle timeout) {
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  const auto home = self.handle.shared();
  auto ring = MakeOnAThread(
      &vmmshare_ring_close,
      [home, channel = connection.handle.shared(), buffers, nbytes, timeout_ns](
          vmmshare_ring** made, vmmshare_error** error) {
        return vmmshare_ring_open_writer(home.get(), channel.get(), buffers,
                                         nbytes, timeout_ns, made, error);
      });
  return Give(
      new Ring{Holder<vmmshare_ring>(std::move(ring)), DefaultDriver(), false});
}

Object<Ring> OpenReader(const Channel& connection, nb::handle device,
                        bool writable, nb::handle timeout) {
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  const auto on = DeviceOf(device);
  auto ring = MakeOnAThread(
      &vmmshare_ring_close,
      [on, channel = connection.handle.shared(), writable, timeout_ns](
          vmmshare_ring** made, vmmshare_error** error) {
        return vmmshare_ring_open_reader(
            on.get(), channel.get(), writable ? 1 : 0, timeout_ns, made, error);
      });
  return Give(new Ring{Holder<vmmshare_ring>(std::move(ring)), DefaultDriver(),
                       !writable, vmmshare_device_ordinal(on.get())});
}

// The item is in `into` before it returns: Ctrl-C comes between the return and
// whatever the caller does with what was returned.
void Acquire(const Ring& self, std::intptr_t stream, nb::handle timeout,
             nb::typed<nb::list, Item> into) {
  const KeptRing ring(self.handle.shared());
  auto buffer = Sized<vmmshare_ring_buffer>();
  void* const on = OneStreamOf(stream);
  WaitInTurns(self, NanosecondsOf(timeout),
              [&](std::int64_t slice, vmmshare_error** error) {
                return vmmshare_ring_acquire(ring.get(), on, slice, &buffer,
                                             error);
              });
  into.append(ItemOf(buffer));
}

void Pass(const Ring& self, nb::handle item, std::intptr_t stream,
          nb::handle timeout) {
  const KeptRing ring(self.handle.shared());
  const vmmshare_ring_buffer buffer = BufferOf(item);
  const std::int64_t timeout_ns = NanosecondsOf(timeout);
  void* const on = OneStreamOf(stream);
  const auto begin = std::chrono::steady_clock::now();
  // Not in slices: once a writer's call was not in time, its ring has ended.
  Outcome passed;
  WaitInTurns(self, timeout_ns, [&](std::int64_t, vmmshare_error**) {
    passed.status = vmmshare_ring_pass(
        ring.get(), &buffer, on, LeftOf(timeout_ns, begin), &passed.error);
    return VMMSHARE_OK;
  });
  if (passed.status != VMMSHARE_OK) Raise(passed.status, passed.error);
}

void Await(const Ring& self, nb::handle item, nb::handle timeout) {
  const KeptRing ring(self.handle.shared());
  const vmmshare_ring_buffer buffer = BufferOf(item);
  WaitInTurns(self, NanosecondsOf(timeout),
              [&](std::int64_t slice, vmmshare_error** error) {
                return vmmshare_ring_await(ring.get(), &buffer, slice, error);
              });
}

// Of a reader that goes while its memory has to stay: hangs up by an abort, for as
// long as it is connected its writer would wait for it. Before, as vmmshare_ring_close(),
// it waits until the GPU has passed what was released: a writer that has all back loses
// nothing by the abort, for values that a fence has reached stay reached.
void LeaveWriter(vmmshare_ring* ring, Turns& turns) {
  constexpr auto kPatience = std::chrono::seconds(10);
  Turns::Place place(turns);
  // Another thread's call has it for a slice.
  if (!place.Take(kPatience)) return;
  vmmshare_error* error = nullptr;
  // FAILED_PRECONDITION at once where a buffer is acquired.
  vmmshare_ring_finish(ring, std::chrono::nanoseconds(kPatience).count(),
                       &error);
  vmmshare_error_free(std::exchange(error, nullptr));
  vmmshare_ring_abort(ring, &error);
  vmmshare_error_free(error);
}

// On a thread, for it waits for the GPU, and Ctrl-C ends that.
void Close(Ring& self) {
  if (self.handle.is_closed()) return;
  auto ring = self.handle.Take();
  // By an array, or by another thread's call.
  const bool is_kept = ring.use_count() > 1;
  const bool is_reader = self.device.has_value();
  const bool leaves = is_kept && is_reader && self.made.is_still_here();
  WaitOnAThread(
      [ring = std::move(ring), turns = self.turns, leaves](Outcome&) mutable {
        if (leaves) LeaveWriter(ring.get(), *turns);
        ring.reset();
      });
}

void Finish(const Ring& self, nb::handle timeout) {
  const KeptRing ring(self.handle.shared());
  WaitInTurns(self, NanosecondsOf(timeout),
              [&](std::int64_t slice, vmmshare_error** error) {
                return vmmshare_ring_finish(ring.get(), slice, error);
              });
}

void Abort(const Ring& self) {
  const KeptRing ring(self.handle.shared());
  WaitInTurns(self, VMMSHARE_FOREVER,
              [&](std::int64_t, vmmshare_error** error) {
                return vmmshare_ring_abort(ring.get(), error);
              });
}

Object<Array> ArrayOf(const Ring& self, nb::handle item, nb::handle shape,
                      nb::handle dtype, UInt64<"offset"> offset) {
  const vmmshare_ring_buffer buffer = BufferOf(item);
  const Located at = Locate(self.driver.get(), buffer.address);
  const Place place =
      PlaceOf(at.on_host, self.device.value_or(at.device), self.readonly);
  return ArrayIn(std::make_shared<RingMemory>(
                     self.handle.shared(), buffer.address, buffer.size, place),
                 shape, dtype, offset);
}

}  // namespace

void DefineRing(nb::module_& module) {
  nb::class_<Channel>(module, "_Channel")
      .def("__init__", &AdoptChannel, nb::arg("descriptor"));
  nb::class_<RingHome> home(module, "_RingHome");
  home.def("__init__", &Create, nb::arg("device"), nb::arg("host_node").none())
      .def("open", &OpenWriter, nb::arg("channel"), nb::arg("buffers"),
           nb::arg("nbytes"), nb::arg("timeout").none());
  DefineClosing(home, "");
  nb::class_<Ring> ring(module, "_Ring");
  ring.def("acquire", &Acquire, nb::arg("stream"), nb::arg("timeout").none(),
           nb::arg("into"))
      .def("hand_over", &Pass, nb::arg("item"), nb::arg("stream"),
           nb::arg("timeout").none())
      .def("wait", &Await, nb::arg("item"), nb::arg("timeout").none())
      .def("finish", &Finish, nb::arg("timeout").none())
      .def("abort", &Abort)
      .def("array", &ArrayOf, nb::arg("item"), nb::arg("shape"),
           nb::arg("dtype").none(), nb::arg("offset"));
  ring.def("close", &Close).def_prop_ro("closed", [](const Ring& self) {
    return self.handle.is_closed();
  });
  module.def("_open_ring", &OpenReader, nb::arg("channel"), nb::arg("device"),
             nb::arg("writable"), nb::arg("timeout").none());
}

}  // namespace vmm::python
