#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/share.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Clear;
using vmm::tool::Json;
using vmm::tool::JsonText;

namespace {

absl::Time After(std::int64_t within_ns) {
  return within_ns == VMMSHARE_FOREVER
             ? absl::InfiniteFuture()
             : absl::Now() + absl::Nanoseconds(within_ns);
}

// The leases of `memory`, or all, as JSON.
std::string Listed(const vmmshare_server& server,
                   const std::optional<vmm::MemoryId>& memory) {
  Json list = Json::array();
  for (const vmm::MemoryLease& lease : server.endpoint->Leases()) {
    if (memory.has_value() && lease.memory != *memory) continue;
    Json one = Json::object();
    one["memory"] = lease.memory.ToString();
    vmm::c::AddLease(lease.lease, &one);
    list.push_back(std::move(one));
  }
  return JsonText(list);
}

}  // namespace

vmmshare_status vmmshare_server_recall(vmmshare_server* server,
                                       const vmmshare_memory* memory,
                                       std::int64_t within_ns,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(server));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    server->endpoint->Recall(shareable.id(), After(within_ns));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_server_recall_all(vmmshare_server* server,
                                           std::int64_t within_ns,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(server));
    server->endpoint->RecallAll(After(within_ns));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_server_leases(const vmmshare_server* server,
                                       vmmshare_text** json,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(server));
    *json = new vmmshare_text{Listed(*server, std::nullopt)};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_server_wait_returned(const vmmshare_server* server,
                                              std::int64_t timeout_ns,
                                              vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(server));
    return server->endpoint->WaitUntilAllReturned(
        vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_server_memory_leases(const vmmshare_server* server,
                                              const vmmshare_memory* memory,
                                              vmmshare_text** json,
                                              vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(server));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    *json = new vmmshare_text{Listed(*server, shareable.id())};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_server_wait_memory_returned(
    const vmmshare_server* server, const vmmshare_memory* memory,
    std::int64_t timeout_ns, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(server));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    return server->endpoint->WaitUntilReturned(shareable.id(),
                                               vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_pool_recall(vmmshare_pool* pool,
                                     const std::uint64_t* addresses,
                                     std::size_t count, std::int64_t within_ns,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    if (addresses != nullptr) {
      return pool->pool->Recall(vmm::c::Pointers(addresses, count),
                                After(within_ns));
    }
    pool->pool->RecallAll(After(within_ns));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_wait_returned(const vmmshare_pool* pool,
                                            const std::uint64_t* addresses,
                                            std::size_t count,
                                            std::int64_t timeout_ns,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    return addresses != nullptr
               ? pool->pool->WaitUntilReturned(
                     vmm::c::Pointers(addresses, count), deadline)
               : pool->pool->WaitUntilAllReturned(deadline);
  });
}

vmmshare_status vmmshare_pool_leases(const vmmshare_pool* pool,
                                     vmmshare_text** json,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(pool));
    Json list = Json::array();
    for (const vmm::BlockLease& lease : pool->pool->Leases()) {
      Json one = Json::object();
      one["block"] = lease.block;
      one["freed"] = lease.freed;
      vmm::c::AddLease(lease.lease, &one);
      list.push_back(std::move(one));
    }
    *json = new vmmshare_text{JsonText(list)};
    return absl::OkStatus();
  });
}
