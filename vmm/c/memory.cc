#include "vmm/c/memory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/memory/adopted_memory.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Clear;
using vmm::c::Make;
using Adopted = vmmshare_memory::Adopted;

namespace {

// What `of` returns for whichever kind of memory it is; 0 for a bad handle.
template <typename Function>
std::uint64_t Ask(const vmmshare_memory* memory, const Function& of) {
  return Check(memory).ok() ? std::visit(of, memory->memory) : 0;
}

}  // namespace

vmmshare_status vmmshare_memory_create(const vmmshare_device* device,
                                       const vmmshare_memory_options* options,
                                       vmmshare_memory** memory,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(memory, "memory"));
    RETURN_IF_ERROR(Check(device));
    ASSIGN_OR_RETURN(const vmm::AllocationOptions given,
                     vmm::c::AllocationOptionsOf(options));
    return Make(memory, vmm::Allocation::Create(device->device, given));
  });
}

vmmshare_status vmmshare_memory_adopt(const vmmshare_driver* driver,
                                      std::uint64_t address, std::uint64_t size,
                                      vmmshare_memory** memory,
                                      vmmshare_error** error) {
  return vmmshare_memory_adopt_as(driver, address, size, 0, memory, error);
}

void vmmshare_memory_close(vmmshare_memory* memory) { vmm::c::Close(memory); }

std::uint64_t vmmshare_memory_address(const vmmshare_memory* memory) {
  return Ask(memory, [](const auto& it) { return it.address(); });
}

std::uint64_t vmmshare_memory_size(const vmmshare_memory* memory) {
  return Ask(memory, [](const auto& it) { return it.size(); });
}

std::uint64_t vmmshare_memory_requested_size(const vmmshare_memory* memory) {
  return Ask(memory, [](const auto& it) { return it.requested_size(); });
}

std::uint64_t vmmshare_memory_offset(const vmmshare_memory* memory) {
  if (!Check(memory).ok()) return 0;
  const auto* adopted = std::get_if<Adopted>(&memory->memory);
  return adopted == nullptr ? 0 : adopted->memory.offset();
}

std::uint32_t vmmshare_memory_kinds(const vmmshare_memory* memory) {
  const auto shareable = vmm::c::ShareableOf(memory);
  return shareable.ok() ? shareable->kinds().bits() : 0;
}

std::int32_t vmmshare_memory_numa_node(const vmmshare_memory* memory) {
  if (!Check(memory).ok()) return -1;
  if (const auto* imported =
          std::get_if<vmm::ImportedAllocation>(&memory->memory)) {
    const auto node = imported->ticket().host_numa_node;
    return node.has_value() ? static_cast<std::int32_t>(*node) : -1;
  }
  const auto shareable = vmm::c::ShareableOf(memory);
  return shareable.ok() && shareable->where().is_host()
             ? shareable->where().numa_node()
             : -1;
}

void vmmshare_memory_device_uuid(const vmmshare_memory* memory,
                                 std::uint8_t uuid[16]) {
  if (uuid == nullptr) return;
  vmm::DeviceUuid found;
  if (Check(memory).ok()) {
    const auto shareable = vmm::c::ShareableOf(memory);
    if (shareable.ok()) {
      found = shareable->device().uuid();
    } else {
      found = std::get<vmm::ImportedAllocation>(memory->memory).ticket().device;
    }
  }
  std::copy(found.bytes.begin(), found.bytes.end(), uuid);
}

vmmshare_status vmmshare_memory_lease(const vmmshare_memory* memory,
                                      std::int64_t* return_in_ns,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(return_in_ns, "return_in_ns", VMMSHARE_FOREVER));
    RETURN_IF_ERROR(Check(memory));
    const auto* imported =
        std::get_if<vmm::ImportedAllocation>(&memory->memory);
    if (imported == nullptr) return vmm::c::WhyNoLease();
    return vmm::c::ReportLease(imported->lease(), return_in_ns);
  });
}

vmmshare_status vmmshare_classify(const vmmshare_driver* driver,
                                  std::uint64_t address,
                                  vmmshare_pointer_info* info,
                                  vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(
        vmm::c::CheckResult(info, 560, "vmmshare_pointer_info", "info"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(const vmm::PointerInfo found,
                     vmm::Classify(driver->driver, address));
    vmmshare_pointer_info out{};
    out.kind = static_cast<std::int32_t>(found.kind);
    out.adoptable = found.adoptable ? 1 : 0;
    out.base = found.range_base;
    out.size = found.range_size;
    out.kinds = found.kinds.bits();
    out.numa_node = found.host_numa_node.value_or(-1);
    out.device = found.device_ordinal.value_or(-1);
    const std::size_t length =
        std::min(found.advice.size(), sizeof(out.advice) - 1);
    std::memcpy(out.advice, found.advice.data(), length);
    vmm::c::WriteResult(out, info);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_reached_from(const vmmshare_driver* driver,
                                      std::uint64_t address,
                                      std::int32_t* ordinal,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(ordinal, "ordinal"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(const vmm::PointerInfo info,
                     vmm::Classify(driver->driver, address));
    ASSIGN_OR_RETURN(const std::optional<int> found,
                     vmm::ReachedFrom(driver->driver, address, info));
    *ordinal = found.value_or(-1);
    return absl::OkStatus();
  });
}
