#include "vmm/c/fence.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;
using vmm::c::StreamOf;

namespace {

using Own = std::shared_ptr<vmm::FencePool>;
using Theirs = std::shared_ptr<vmm::ImportedFencePool>;

absl::StatusOr<Own> OwnOf(const vmmshare_fence_pool::Any& pool) {
  if (const auto* own = std::get_if<Own>(&pool)) return *own;
  return absl::FailedPreconditionError(
      "the fence pool is another process's. Make fences in a pool that this "
      "process created.");
}

absl::StatusOr<Theirs> TheirsOf(const vmmshare_fence_pool::Any& pool) {
  if (const auto* theirs = std::get_if<Theirs>(&pool)) return *theirs;
  return absl::FailedPreconditionError(
      "the fence pool is this process's own. Open tickets in a pool that "
      "another process serves and this one opened.");
}

absl::StatusOr<std::vector<vmm::Fence*>> FencesOf(vmmshare_fence* const* fences,
                                                  std::uint64_t count,
                                                  absl::string_view name) {
  if (count != 0) RETURN_IF_ERROR(CheckGiven(fences, name));
  std::vector<vmm::Fence*> found;
  for (std::uint64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(Check(fences[i]));
    found.push_back(&fences[i]->fence);
  }
  return found;
}

}  // namespace

vmmshare_status vmmshare_fence_pool_create(const vmmshare_device* device,
                                           vmmshare_fence_pool** pool,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(pool, "pool"));
    RETURN_IF_ERROR(Check(device));
    return Make(pool, vmm::FencePool::Create(device->device));
  });
}

vmmshare_status vmmshare_fence_pool_open(const vmmshare_device* device,
                                         const char* text,
                                         std::int64_t timeout_ns,
                                         vmmshare_fence_pool** pool,
                                         vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(pool, "pool"));
    RETURN_IF_ERROR(Check(device));
    RETURN_IF_ERROR(CheckGiven(text, "text"));
    return Make(
        pool, vmm::ImportedFencePool::Subscribe(
                  device->device.driver(), text, {.devices = {device->device}},
                  vmm::c::DeadlineOf(timeout_ns)));
  });
}

void vmmshare_fence_pool_close(vmmshare_fence_pool* pool) {
  vmm::c::Close(pool);
}

vmmshare_status vmmshare_fence_pool_connection(const vmmshare_fence_pool* pool,
                                               vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    const auto* theirs = std::get_if<Theirs>(&pool->pool);
    return theirs == nullptr ? absl::OkStatus() : (*theirs)->connection();
  });
}

vmmshare_status vmmshare_server_share_fences(vmmshare_server* server,
                                             vmmshare_fence_pool* pool,
                                             vmmshare_share** share,
                                             vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(share, "share"));
    RETURN_IF_ERROR(Check(server));
    RETURN_IF_ERROR(Check(pool));
    ASSIGN_OR_RETURN(const Own own, OwnOf(pool->pool));
    return Make(share, server->endpoint->Serve(own->pool()));
  });
}

vmmshare_status vmmshare_fence_create(vmmshare_fence_pool* pool,
                                      vmmshare_fence** fence,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(fence, "fence"));
    RETURN_IF_ERROR(Check(pool));
    ASSIGN_OR_RETURN(const Own own, OwnOf(pool->pool));
    ASSIGN_OR_RETURN(vmm::Fence made, own->New());
    *fence = new vmmshare_fence(own, std::move(made));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_fence_ticket(
    const vmmshare_fence* fence,
    std::uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES], vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckGiven(ticket, "ticket"));
    std::fill_n(ticket, VMMSHARE_FENCE_TICKET_BYTES, std::uint8_t{0});
    RETURN_IF_ERROR(Check(fence));
    if (!fence->pool.has_value()) {
      return absl::FailedPreconditionError(
          "the fence is one of an array, which has no tickets. Whoever has the "
          "array's memory has the fence by its index.");
    }
    ASSIGN_OR_RETURN(const Own own, OwnOf(*fence->pool));
    ASSIGN_OR_RETURN(const vmm::FenceTicket exported,
                     own->Export(fence->fence));
    static_assert(VMMSHARE_FENCE_TICKET_BYTES == vmm::kFenceTicketBytes);
    const vmm::FenceTicketBytes bytes = vmm::EncodeFenceTicket(exported);
    std::copy(bytes.begin(), bytes.end(), ticket);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_fence_open(
    vmmshare_fence_pool* pool,
    const std::uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES],
    std::int64_t timeout_ns, vmmshare_fence** fence, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(fence, "fence"));
    RETURN_IF_ERROR(Check(pool));
    RETURN_IF_ERROR(CheckGiven(ticket, "ticket"));
    ASSIGN_OR_RETURN(const Theirs theirs, TheirsOf(pool->pool));
    ASSIGN_OR_RETURN(const vmm::FenceTicket decoded,
                     vmm::DecodeFenceTicket(
                         absl::MakeConstSpan(ticket, vmm::kFenceTicketBytes)));
    ASSIGN_OR_RETURN(vmm::Fence imported,
                     theirs->Import(decoded, vmm::c::DeadlineOf(timeout_ns)));
    *fence = new vmmshare_fence(theirs, std::move(imported));
    return absl::OkStatus();
  });
}

void vmmshare_fence_close(vmmshare_fence* fence) { vmm::c::Close(fence); }

vmmshare_status vmmshare_fence_signal(vmmshare_fence* fence, void* stream,
                                      std::uint64_t value,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.Signal(StreamOf(stream), value);
  });
}

vmmshare_status vmmshare_fence_add(vmmshare_fence* fence, void* stream,
                                   std::uint64_t value,
                                   vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.Add(StreamOf(stream), value);
  });
}

vmmshare_status vmmshare_fence_wait(vmmshare_fence* fence, void* stream,
                                    std::uint64_t value,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.Wait(StreamOf(stream), value);
  });
}

vmmshare_status vmmshare_fence_meet(vmmshare_fence* const* signals,
                                    std::uint64_t signal_count,
                                    vmmshare_fence* const* waits,
                                    std::uint64_t wait_count, void* stream,
                                    std::uint64_t value,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const auto to, FencesOf(signals, signal_count, "signals"));
    ASSIGN_OR_RETURN(const auto from, FencesOf(waits, wait_count, "waits"));
    return vmm::Fence::Meet(StreamOf(stream), to, from, value);
  });
}

vmmshare_status vmmshare_fence_signal_host(vmmshare_fence* fence,
                                           std::uint64_t value,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.SignalFromHost(value);
  });
}

vmmshare_status vmmshare_fence_wait_host(vmmshare_fence* fence,
                                         std::uint64_t value,
                                         std::int64_t timeout_ns,
                                         vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.WaitOnHost(value, vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_fence_value(const vmmshare_fence* fence,
                                     std::uint64_t* value,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(value, "value"));
    RETURN_IF_ERROR(Check(fence));
    ASSIGN_OR_RETURN(*value, fence->fence.Query());
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_fence_abandon(vmmshare_fence* fence,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(fence));
    return fence->fence.Abandon();
  });
}
