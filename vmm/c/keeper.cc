#include "vmm/c/keeper.h"

#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/tool/keep.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

namespace {

// A call of the keeper's that is given a name and answers nothing.
using NamedCall = absl::Status (vmm::KeeperClient::*)(absl::string_view,
                                                      vmm::Deadline);

vmmshare_status CallByName(vmmshare_keeper* keeper, NamedCall call,
                           const char* name, std::int64_t timeout_ns,
                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(keeper));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    return (keeper->keeper.*call)(name, vmm::c::DeadlineOf(timeout_ns));
  });
}

}  // namespace

vmmshare_status vmmshare_keeper_connect(const char* address,
                                        std::int64_t timeout_ns,
                                        vmmshare_keeper** keeper,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(keeper, "keeper"));
    vmm::KeeperClientOptions options;
    if (address != nullptr) options.address = address;
    return Make(keeper, vmm::KeeperClient::Connect(
                            options, vmm::c::DeadlineOf(timeout_ns)));
  });
}

void vmmshare_keeper_close(vmmshare_keeper* keeper) { vmm::c::Close(keeper); }

vmmshare_status vmmshare_keeper_put(vmmshare_keeper* keeper, const char* name,
                                    const vmmshare_memory* memory,
                                    std::int64_t timeout_ns,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(keeper));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    return keeper->keeper.Put(name, shareable, vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_keeper_attach(
    vmmshare_keeper* keeper, const char* name, const vmmshare_driver* driver,
    const vmmshare_import_options* options, std::int64_t timeout_ns,
    vmmshare_memory** memory, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(memory, "memory"));
    RETURN_IF_ERROR(Check(keeper));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    return Make(memory, keeper->keeper.Attach(name, driver->driver,
                                              {.import = std::move(import)},
                                              vmm::c::DeadlineOf(timeout_ns)));
  });
}

vmmshare_status vmmshare_keeper_seal(vmmshare_keeper* keeper, const char* name,
                                     std::int64_t timeout_ns,
                                     vmmshare_error** error) {
  return CallByName(keeper, &vmm::KeeperClient::Seal, name, timeout_ns, error);
}
vmmshare_status vmmshare_keeper_lock(vmmshare_keeper* keeper, const char* name,
                                     std::int64_t timeout_ns,
                                     vmmshare_error** error) {
  return CallByName(keeper, &vmm::KeeperClient::Lock, name, timeout_ns, error);
}
vmmshare_status vmmshare_keeper_unlock(vmmshare_keeper* keeper,
                                       const char* name,
                                       std::int64_t timeout_ns,
                                       vmmshare_error** error) {
  return CallByName(keeper, &vmm::KeeperClient::Unlock, name, timeout_ns,
                    error);
}
vmmshare_status vmmshare_keeper_drop(vmmshare_keeper* keeper, const char* name,
                                     std::int64_t timeout_ns,
                                     vmmshare_error** error) {
  return CallByName(keeper, &vmm::KeeperClient::Drop, name, timeout_ns, error);
}

vmmshare_status vmmshare_keeper_list(vmmshare_keeper* keeper,
                                     std::int64_t timeout_ns,
                                     vmmshare_text** json,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(keeper));
    ASSIGN_OR_RETURN(const vmm::KeeperListing listing,
                     keeper->keeper.List(vmm::c::DeadlineOf(timeout_ns)));
    *json = new vmmshare_text{vmm::tool::AsJson(listing)};
    return absl::OkStatus();
  });
}
