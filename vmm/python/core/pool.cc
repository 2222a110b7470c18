#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "vmm/python/core/array.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/interpreter_end.h"
#include "vmm/python/core/options.h"
#include "vmm/python/core/shape.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void Create(Pool* self, nb::handle device, nb::handle host_node,
            UInt64<"cap"> cap, UInt64<"first_segment"> first_segment,
            UInt64<"max_segment"> max_segment, bool legacy,
            const std::string& rdma) {
  const auto on = DeviceOf(device);
  auto options = Sized<vmmshare_pool_options>();
  options.cap = cap;
  options.first_segment_size = first_segment;
  options.max_segment_size = max_segment;
  if (legacy) options.kinds = kOrLegacy;
  options.flags = RdmaFlag(rdma);
  PutOnHost(options, host_node);
  new (self)
      Pool{Holder<vmmshare_pool>(MakeClosedBy<vmmshare_pool>(
               PoolCloser(),
               [&](vmmshare_pool** made, vmmshare_error** error) {
                 return vmmshare_pool_create(on.get(), &options, made, error);
               })),
           !host_node.is_none(), vmmshare_device_ordinal(on.get())};
}

void* NamedStreamOf(std::intptr_t stream) {
  return NamedStream(StreamOf(stream));
}

std::uint64_t AllocateFrom(const std::shared_ptr<vmmshare_pool>& pool,
                           std::uint64_t nbytes, void* on) {
  std::uint64_t address = 0;
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_pool_allocate(pool.get(), nbytes, 0, on, &address, error);
  });
  return address;
}

// For allocators of other libraries, which keep the address themselves, and with
// it a pool that nobody else can close: Kept(). Who knows of no stream says the
// default one.
void* StreamOrAll(std::intptr_t stream) {
  void* const on = NamedStreamOf(stream);
  return on == LegacyStream() ? VMMSHARE_ALL_STREAMS : on;
}

std::uint64_t Allocate(const Pool& self, std::uint64_t nbytes,
                       std::intptr_t stream) {
  return AllocateFrom(self.handle.shared(), nbytes, StreamOrAll(stream));
}

void Free(const Pool& self, std::uint64_t address, std::intptr_t stream) {
  const auto pool = self.handle.shared();
  void* const on = StreamOrAll(stream);
  // What is freed after all is so after the default stream's work.
  PoolCloser::GoesBackAfter(pool, StreamUse::Now(NamedStreamOf(stream)));
  Must([&](vmmshare_error** error) -> vmmshare_status {
    const NotYetTheEnd stays;
    if (MayBeGone(NamedStreamOf(stream))) return VMMSHARE_OK;
    return vmmshare_pool_free(pool.get(), address, on, error);
  });
}

// The same pool once more, for who needs it after close().
Object<Pool> Kept(const Pool& self) {
  return Give(new Pool{Holder<vmmshare_pool>(self.handle.shared()),
                       self.on_host, self.device});
}

Object<Array> Empty(const Pool& self, nb::handle shape, nb::handle dtype,
                    std::intptr_t stream) {
  Layout layout = DenseLayout(shape, dtype, 0);
  const std::uint64_t bytes =
      *DenseBytes(layout.shape, layout.dtype->itemsize());
  const std::uint64_t size = bytes == 0 ? 1 : bytes;  // No block is empty.
  // One handle for all: another thread may close the pool meanwhile.
  const auto pool = self.handle.shared();
  void* const on = NamedStreamOf(stream);
  const std::uint64_t address = AllocateFrom(pool, size, on);
  const Place place = PlaceOf(self.on_host, self.device, false);
  return MakeArray(std::make_shared<PoolBlock>(pool, address, size, place, on),
                   std::move(layout));
}

Counts Statistics(const Pool& self) {
  auto now = Sized<vmmshare_pool_statistics>();
  Must([&](vmmshare_error** error) {
    return vmmshare_pool_get_statistics(self.handle.get(), &now, error);
  });
  Counts dict;
  dict["reserved"] = now.reserved;
  dict["live"] = now.live;
  dict["requested"] = now.requested;
  dict["held"] = now.held;
  dict["free"] = now.free;
  dict["live_blocks"] = now.live_blocks;
  dict["tickets"] = now.tickets;
  dict["peers"] = now.peers;
  dict["allocations"] = now.allocations;
  dict["frees"] = now.frees;
  return dict;
}

std::string Weakness(const Pool& self) {
  return MadeText(self.handle, &vmmshare_pool_weakness);
}

void Recall(const Pool& self, double within) {
  const std::int64_t within_ns = NanosecondsWithin(within);
  Must([&](vmmshare_error** error) {
    return vmmshare_pool_recall(self.handle.get(), nullptr, 0, within_ns,
                                error);
  });
}

void WaitReturned(const Pool& self, nb::handle timeout) {
  const auto pool = self.handle.shared();
  WaitInSlices(NanosecondsOf(timeout),
               [&](std::int64_t timeout_ns, vmmshare_error** error) {
                 return vmmshare_pool_wait_returned(pool.get(), nullptr, 0,
                                                    timeout_ns, error);
               });
}

void ReleaseStream(const Pool& self, std::intptr_t stream, nb::handle timeout) {
  void* const on = NamedStream(OneStreamOf(stream));
  const auto pool = self.handle.shared();
  WaitInSlices(
      NanosecondsOf(timeout), [&](std::int64_t slice, vmmshare_error** error) {
        return vmmshare_pool_release_stream(pool.get(), on, slice, error);
      });
  StreamWasReleased(on);
}

// For who keeps a stream as long as the pool asks the driver after it, and not for
// whoever else uses it: arrays of it go back after it as before. False while it must
// be kept.
bool ForgetStream(const Pool& self, std::intptr_t stream) {
  const auto pool = self.handle.shared();
  void* const on = NamedStreamOf(stream);
  const WithoutGil released;
  return PoolCloser::Forget(pool, on);
}

std::uint64_t Trim(const Pool& self, UInt64<"keep"> keep) {
  const auto pool = self.handle.shared();
  std::uint64_t freed = 0;
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_pool_trim(pool.get(), keep, &freed, error);
  });
  return freed;
}

}  // namespace

void DefinePool(nb::module_& module) {
  nb::class_<Pool> type(
      module, "Pool", nb::is_weak_referenceable(),
      "Many arrays out of few large pieces of memory. Sharing one is sending "
      "its ticket:\nno driver call and no system call on either side.");
  type.def(
          "__init__", &Create, nb::arg("device") = 0, nb::kw_only(),
          nb::arg("host_node") = nb::none(), nb::arg("cap") = 0,
          nb::arg("first_segment") = 0, nb::arg("max_segment") = 0,
          nb::arg("legacy") = false, nb::arg("rdma") = "off",
          "Takes no memory yet. `device`: an ordinal, a UUID or a Device. "
          "`host_node`: on that\nNUMA node of the host instead. `cap`: at most "
          "so many bytes, 0 without a limit.\n`first_segment` and "
          "`max_segment`: bytes asked of the driver at a time; 0: 32 MiB\nand "
          "1 GiB. `legacy` and `rdma`: see Allocation; the pool must outlive "
          "its "
          "peers with the\nfirst.")
      .def("empty", &Empty, nb::arg("shape"), nb::arg("dtype").none(),
           nb::arg("stream") = 0,
           "An array of whatever was there before. `dtype`: \"float16\", "
           "NumPy's \"<f2\", or a dtype\nof NumPy's or PyTorch's. `stream`: a "
           "CUstream as an int, whose work uses it first; 0\nis the legacy "
           "default stream. The first from_dlpack() on another one makes that "
           "wait\nfor what is on it. ResourceExhausted when it does not fit.")
      .def("_allocate", &Allocate, nb::arg("nbytes"), nb::arg("stream"))
      .def("_free", &Free, nb::arg("ptr"), nb::arg("stream"))
      .def("_kept", &Kept)
      .def("_forget_stream", &ForgetStream, nb::arg("stream"))
      .def_prop_ro(
          "device",
          [](const Pool& self) {
            return self.on_host ? std::nullopt : std::optional(self.device);
          },
          "The ordinal of its device; None for one on the host.")
      .def(
          "find",
          [](const Pool& self, UInt64<"ptr"> ptr) {
            std::uint64_t base = 0;
            std::uint64_t size = 0;
            Must([&](vmmshare_error** error) {
              return vmmshare_pool_find(self.handle.get(), ptr, &base, &size,
                                        error);
            });
            return AddressAndSize(nb::make_tuple(base, size));
          },
          nb::arg("ptr"),
          "The block around an address: where it begins and its bytes. "
          "NotFound "
          "when no live\nblock of this pool is there.")
      .def("statistics", &Statistics,
           "Bytes: reserved, live, requested, held (freed, but a peer has "
           "them), free. Counts:\nlive_blocks, tickets, peers, allocations, "
           "frees.")
      .def_prop_ro("weakness", &Weakness,
                   "What is weaker about its memory than about memory of "
                   "cuMemCreate(), once it has any;\n\"\" if nothing is.")
      .def(
          "trim", &Trim, nb::arg("keep") = 0,
          "Gives idle memory back to the driver but for `keep` bytes. How many "
          "bytes.")
      .def("release_stream", &ReleaseStream, nb::arg("stream"), nb::kw_only(),
           nb::arg("timeout").none() = 10.0,
           "Call it before a stream that arrays were made for or used on is "
           "destroyed: on "
           "each Pool whose\narrays were. Returns once the GPU has passed what "
           "is on `stream`, a CUstream as an int;\nfrom then on those arrays, "
           "and a RemotePool's, go back without it. DeadlineExceeded:\nit has "
           "not passed. FailedPrecondition for a stream that is captured. "
           "Let another thread's\nfirst use of such an array return before: "
           "it asks the driver for that stream.")
      .def(
          "leases",
          [](const Pool& self) {
            return JsonOf<Rows>(self.handle, &vmmshare_pool_leases);
          },
          "Who holds which block: a list of dicts.")
      .def("recall", &Recall, nb::arg("within"),
           "Asks all peers to let go of all blocks within so many seconds; "
           "waits for none.")
      .def("wait_returned", &WaitReturned, nb::arg("timeout").none() = 10.0,
           "Returns when no peer holds a block. `timeout` in seconds, None for "
           "ever;\nDeadlineExceeded names who still does.")
      .def("__repr__", [](const Pool& self) {
        return Described("Pool", self.handle, [&](const vmmshare_pool*) {
          return self.on_host ? std::string(", host")
                              : ", device " + std::to_string(self.device);
        });
      });
  DefineClosing(type,
                "Nothing more can be made from it. Its memory goes when its "
                "last array does.");
}

}  // namespace vmm::python
