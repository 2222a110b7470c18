#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/share.h"
#include "vmm/share/transfer.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

vmmshare_status vmmshare_channel_adopt(std::intptr_t socket,
                                       vmmshare_channel** channel,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    auto own = vmm::platform::OsHandle::Adopt(socket);
    RETURN_IF_ERROR(Clear(channel, "channel"));
    return Make(channel, vmm::platform::Channel::Adopt(std::move(own), {}));
  });
}

void vmmshare_channel_close(vmmshare_channel* channel) {
  vmm::c::Close(channel);
}

vmmshare_status vmmshare_channel_send_memory(
    vmmshare_channel* channel, const vmmshare_memory* const* memory,
    std::uint32_t count, std::int64_t timeout_ns, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(channel));
    RETURN_IF_ERROR(CheckGiven(memory, "memory"));
    std::vector<vmm::Shareable> all;
    for (std::uint32_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(vmm::Shareable one, vmm::c::ShareableOf(memory[i]));
      all.push_back(one);
    }
    return vmm::SendAllocations(channel->channel, all,
                                vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_channel_receive_memory(
    vmmshare_channel* channel, const vmmshare_driver* driver,
    const vmmshare_import_options* options, std::uint32_t count,
    std::int64_t timeout_ns, vmmshare_memory** memory, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckGiven(memory, "memory"));
    for (std::uint32_t i = 0; i < count; ++i) memory[i] = nullptr;
    RETURN_IF_ERROR(Check(channel));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(const vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    ASSIGN_OR_RETURN(
        auto received,
        vmm::ReceiveAllocations(channel->channel, driver->driver, import,
                                vmm::c::DeadlineOf(timeout_ns)));
    if (received.size() != count) {
      return absl::FailedPreconditionError(absl::StrCat(
          received.size(), " pieces of memory came in one exchange; expected ",
          count, ". Agree with the sender how many it sends."));
    }
    // All or nothing, also where the host has no memory for a handle.
    std::vector<std::unique_ptr<vmmshare_memory>> made;
    made.reserve(count);
    for (vmm::ImportedAllocation& each : received) {
      made.push_back(std::make_unique<vmmshare_memory>(std::move(each)));
    }
    for (std::uint32_t i = 0; i < count; ++i) memory[i] = made[i].release();
    return absl::OkStatus();
  });
}
