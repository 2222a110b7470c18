#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "vmm/python/core/handles.h"
#include "vmm/python/core/path.h"
#include "vmm/python/core/uint64.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Keeps the server, so that whoever has the share needs to keep no other.
struct Share {
  Holder<vmmshare_share> handle;
  std::shared_ptr<vmmshare_server> server;
};

// The C interface takes 0 for its default.
std::uint32_t LimitOf(std::uint64_t given, const char* name) {
  if (given == 0 || given > std::numeric_limits<std::uint32_t>::max()) {
    throw nb::value_error((std::string(name) + " is " + std::to_string(given) +
                           "; expected 1 to 2**32 - 1")
                              .c_str());
  }
  return static_cast<std::uint32_t>(given);
}

void Start(Server* self, const PathLike& directory,
           UInt64<"max_sessions"> max_sessions,
           UInt64<"max_leases"> max_leases) {
  const std::string folder = PathOf(directory, "directory");
  auto options = Sized<vmmshare_server_options>();
  options.directory = folder.empty() ? nullptr : folder.c_str();
  options.max_sessions = LimitOf(max_sessions, "max_sessions");
  options.max_leases = LimitOf(max_leases, "max_leases");
  new (self) Server{Holder<vmmshare_server>(
      Make(&vmmshare_server_close,
           [&](vmmshare_server** made, vmmshare_error** error) {
             return vmmshare_server_start(&options, made, error);
           }))};
}

Object<Share> ShareOf(const Server& self, nb::handle what) {
  const auto server = self.handle.shared();
  const auto make = [&](const auto& call) {
    return Give(new Share{
        Holder<vmmshare_share>(Make(&vmmshare_share_close, call)), server});
  };
  if (nb::isinstance<Pool>(what)) {
    const auto pool = nb::cast<Pool&>(what).handle.shared();
    return make([&](vmmshare_share** made, vmmshare_error** error) {
      return vmmshare_server_share_pool(server.get(), pool.get(), made, error);
    });
  }
  if (nb::isinstance<Allocation>(what)) {
    auto& allocation = nb::cast<Allocation&>(what);
    const auto memory = allocation.handle.shared();
    auto share = make([&](vmmshare_share** made, vmmshare_error** error) {
      return vmmshare_server_share_memory(server.get(), memory.get(), made,
                                          error);
    });
    const auto servers = allocation.Servers();
    if (std::find(servers.begin(), servers.end(), server) == servers.end()) {
      allocation.servers.emplace_back(server);
    }
    return share;
  }
  if (nb::isinstance<FencePool>(what)) {
    const auto pool = nb::cast<FencePool&>(what).handle.shared();
    return make([&](vmmshare_share** made, vmmshare_error** error) {
      return vmmshare_server_share_fences(server.get(), pool.get(), made,
                                          error);
    });
  }
  throw nb::type_error("expected a Pool, an Allocation or a FencePool");
}

std::string TextOf(const Share& self) {
  return vmmshare_share_text(self.handle.get());
}

}  // namespace

void DefineServer(nb::module_& module) {
  nb::class_<Server> server(
      module, "Server",
      "Serves memory to processes of the same user. serve() uses one of the "
      "process's own;\nanother is for another folder, or other limits.");
  server
      .def("__init__", &Start, nb::kw_only(), nb::arg("directory") = "",
           nb::arg("max_sessions") = 64, nb::arg("max_leases") = 256,
           "`directory`: the folder of its socket. `max_sessions`: how many "
           "connections to its pools\nand FencePools there may be at once. "
           "`max_leases`: how often its Allocations may be open.\nA process "
           "has at most half of either.")
      // Bytes, for a folder's name may be no UTF-8.
      .def_prop_ro("_address",
                   [](const Server& self) {
                     const auto own = self.handle.shared();
                     const char* const path =
                         vmmshare_server_address(own.get());
                     return nb::bytes(path);
                   })
      .def("share", &ShareOf, nb::arg("what"),
           "Serves a Pool, an Allocation or a FencePool while the Share "
           "exists.")
      .def(
          "leases",
          [](const Server& self) {
            return JsonOf<Rows>(self.handle, &vmmshare_server_leases);
          },
          "Who holds which Allocation: a list of dicts. Of pools: "
          "Pool.leases().")
      .def(
          "recall",
          [](const Server& self, const Allocation& what, double within) {
            const std::int64_t within_ns = NanosecondsWithin(within);
            Must([&](vmmshare_error** error) {
              return vmmshare_server_recall(
                  self.handle.get(), what.handle.get(), within_ns, error);
            });
          },
          nb::arg("allocation"), nb::arg("within"),
          "Asks all who hold it to let go within so many seconds; waits for "
          "none.")
      .def(
          "wait_returned",
          [](const Server& self, nb::handle timeout) {
            const auto own = self.handle.shared();
            WaitInSlices(NanosecondsOf(timeout), [&](std::int64_t slice,
                                                     vmmshare_error** error) {
              return vmmshare_server_wait_returned(own.get(), slice, error);
            });
          },
          nb::arg("timeout").none() = 10.0,
          "Returns when nobody holds an Allocation of this server. `timeout` "
          "in seconds, None\nfor ever; DeadlineExceeded names who still does.");
  DefineClosing(server, "Serves nobody any more, but for its shares.");

  nb::class_<Share> share(
      module, "Share", nb::is_weak_referenceable(),
      "What is served. str(share) is the text for connect(): it is the "
      "key to what is\nshared, so give it to those who may have that, and to "
      "nobody else.");
  share.def_prop_ro("text", &TextOf)
      .def("__str__", &TextOf)
      .def("__repr__", [](const Share& self) {
        // Logs show it, and the text is a key.
        return std::string(self.handle.is_closed() ? "<vmmshare.Share, closed>"
                                                   : "<vmmshare.Share>");
      });
  DefineClosing(share, "Serves it no more. Who has it keeps it.");
}

}  // namespace vmm::python
