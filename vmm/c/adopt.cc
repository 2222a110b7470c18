// What memory has beyond an address: adopted from another allocator, what is weaker
// about it, which kinds it was denied, and copies into it.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/memory.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/tool/json.h"
#include "vmm/weights/internal/memory_copy.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Clear;
using vmm::tool::Json;
using vmm::tool::JsonText;
using Adopted = vmmshare_memory::Adopted;

vmmshare_status vmmshare_memory_adopt_as(
    const vmmshare_driver* driver, std::uint64_t address, std::uint64_t size,
    std::uint32_t accept, vmmshare_memory** memory, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(memory, "memory"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(vmm::c::CheckBits(
        accept, VMMSHARE_KIND_LEGACY_IPC | VMMSHARE_KIND_STREAM_POOL,
        "accept"));
    ASSIGN_OR_RETURN(auto adopted,
                     vmm::AdoptedMemory::Adopt(
                         driver->driver, address, size,
                         {.accept = vmm::HandleKindSet::FromBits(accept)}));
    *memory = new vmmshare_memory(Adopted{std::move(adopted), address, size});
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_memory_weakness(const vmmshare_memory* memory,
                                         vmmshare_text** text,
                                         vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(text, "text"));
    RETURN_IF_ERROR(Check(memory));
    *text = new vmmshare_text{std::visit(
        [](const auto& it) { return it.weakness(); }, memory->memory)};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_memory_write(const vmmshare_memory* memory,
                                      std::uint64_t offset, std::uint64_t from,
                                      std::uint64_t size,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(memory));
    const std::uint64_t room = vmmshare_memory_size(memory);
    if (offset > room || size > room - offset) {
      return absl::InvalidArgumentError(
          absl::StrCat(size, " bytes to write at offset ", offset,
                       " into memory of ", room));
    }
    const auto* own = std::get_if<vmm::Allocation>(&memory->memory);
    if (own == nullptr) {
      return absl::FailedPreconditionError(
          "only memory that was created here is written so");
    }
    ASSIGN_OR_RETURN(const auto copy,
                     vmm::weights::MemoryCopy::Open(
                         own->device().driver(), own->address() + offset, size,
                         vmm::Access::kReadWrite));
    // Into memory of the host it copies in the current context, if there is one.
    vmm::SpareContext spare(own->device());
    ASSIGN_OR_RETURN(const vmm::CurrentContext current,
                     spare.EnterFor(nullptr));
    RETURN_IF_ERROR(size > 0 ? copy.WriteFrom(0, from, size)
                             : copy.ComeAfterCurrentContext());
    std::optional<vmm::PrimaryContext> primary;
    if (size > 0) {
      RETURN_IF_ERROR(copy.Finish());
    } else if (copy.on_host() == nullptr) {
      ASSIGN_OR_RETURN(primary, vmm::PrimaryContext::Retain(own->device()));
    }
    const vmm::platform::MutexLock lock(memory->mutex);
    memory->primary = std::move(primary);
    return absl::OkStatus();
  });
}

void vmmshare_memory_disclosed(const vmmshare_memory* memory,
                               std::uint64_t* base, std::uint64_t* size) {
  vmm::AddressSpan span;
  if (Check(memory).ok()) {
    span = std::visit([](const auto& it) { return it.disclosed(); },
                      memory->memory);
  }
  if (base != nullptr) *base = span.base;
  if (size != nullptr) *size = span.size;
}

vmmshare_status vmmshare_memory_passed_over(const vmmshare_memory* memory,
                                            vmmshare_text** json,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(memory));
    Json list = Json::array();
    if (const auto* own = std::get_if<vmm::Allocation>(&memory->memory)) {
      for (const vmm::PassedOver& each : own->passed_over()) {
        Json one = Json::object();
        one["kind"] = NameOf(each.kind);
        one["why"] = each.reason.message();
        list.push_back(std::move(one));
      }
    }
    *json = new vmmshare_text{JsonText(list)};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_memory_neighbours(const vmmshare_memory* memory,
                                           vmmshare_text** json,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(memory));
    Json list = Json::array();
    const auto* adopted = std::get_if<Adopted>(&memory->memory);
    if (adopted != nullptr && adopted->memory.block() != nullptr) {
      ASSIGN_OR_RETURN(
          const auto found,
          vmm::Neighbours(adopted->memory.shareable().device().driver(),
                          *adopted->memory.block()));
      for (const vmm::AddressSpan& each : found) {
        list.push_back(Json::array({each.base, each.size}));
      }
    }
    *json = new vmmshare_text{JsonText(list)};
    return absl::OkStatus();
  });
}
