#include "vmm/c/share.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

namespace {

// `*timeout` stays as it is for 0.
absl::Status ReadTimeout(std::int64_t given, absl::string_view name,
                         absl::Duration* timeout) {
  if (given < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` is ", given,
                     ". Give nanoseconds from 1 on, or 0 for the usual time."));
  }
  if (given != 0) *timeout = absl::Nanoseconds(given);
  return absl::OkStatus();
}

absl::StatusOr<vmm::EndpointOptions> OptionsOf(
    const vmmshare_server_options* options) {
  ASSIGN_OR_RETURN(const vmmshare_server_options given,
                   vmm::c::ReadOptions(options, 48, "vmmshare_server_options"));
  vmm::EndpointOptions endpoint;
  if (given.directory != nullptr) endpoint.listener.directory = given.directory;
  if (given.name != nullptr) endpoint.listener.name = given.name;
  if (given.max_sessions != 0) endpoint.max_sessions = given.max_sessions;
  if (given.max_leases != 0) endpoint.max_leases = given.max_leases;
  RETURN_IF_ERROR(ReadTimeout(given.request_timeout_ns, "request_timeout_ns",
                              &endpoint.request_timeout));
  RETURN_IF_ERROR(ReadTimeout(given.transfer_timeout_ns, "transfer_timeout_ns",
                              &endpoint.transfer_timeout));
  return endpoint;
}

}  // namespace

vmmshare_status vmmshare_server_start(const vmmshare_server_options* options,
                                      vmmshare_server** server,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(server, "server"));
    ASSIGN_OR_RETURN(const vmm::EndpointOptions given, OptionsOf(options));
    return Make(server, vmm::Endpoint::Start(given));
  });
}

void vmmshare_server_close(vmmshare_server* server) { vmm::c::Close(server); }

const char* vmmshare_server_address(const vmmshare_server* server) {
  if (!Check(server).ok()) return "";
  return server->endpoint->address().c_str();
}

vmmshare_status vmmshare_server_share_memory(vmmshare_server* server,
                                             const vmmshare_memory* memory,
                                             vmmshare_share** share,
                                             vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(share, "share"));
    RETURN_IF_ERROR(Check(server));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    return Make(share, server->endpoint->Publish(shareable));
  });
}

vmmshare_status vmmshare_server_share_pool(vmmshare_server* server,
                                           vmmshare_pool* pool,
                                           vmmshare_share** share,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(share, "share"));
    RETURN_IF_ERROR(Check(server));
    RETURN_IF_ERROR(Check(pool));
    return Make(share, server->endpoint->Serve(*pool->pool));
  });
}

void vmmshare_share_close(vmmshare_share* share) { vmm::c::Close(share); }

const char* vmmshare_share_text(const vmmshare_share* share) {
  if (!Check(share).ok()) return "";
  return share->share.ticket().c_str();
}

vmmshare_status vmmshare_memory_open(const vmmshare_driver* driver,
                                     const char* text,
                                     const vmmshare_import_options* options,
                                     std::int64_t timeout_ns,
                                     vmmshare_memory** memory,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(memory, "memory"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(CheckGiven(text, "text"));
    ASSIGN_OR_RETURN(const vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    return Make(memory, vmm::OpenTicket(driver->driver, text, import,
                                        vmm::c::DeadlineOf(timeout_ns)));
  });
}
