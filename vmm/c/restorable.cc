#include "vmm/c/restorable.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/share/restorable.h"

using vmm::RestorableAllocation;
using vmm::RestorableImport;
using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;

struct vmmshare_restorable : vmm::c::Handle<vmm::c::HandleType::kRestorable> {
  using Any = std::variant<RestorableAllocation, RestorableImport>;
  vmmshare_restorable(Any any, std::shared_ptr<vmm::Endpoint> served_by)
      : endpoint(std::move(served_by)),
        address(std::visit([](const auto& it) { return it.address(); }, any)),
        size(std::visit([](const auto& it) { return it.size(); }, any)),
        memory(std::move(any)) {
    if (const auto* own = std::get_if<RestorableAllocation>(&memory)) {
      requested_size = own->memory().requested_size();
      text = own->ticket();
    } else {
      requested_size = std::get<RestorableImport>(memory).requested_size();
    }
  }

  // Of own memory; goes after that.
  const std::shared_ptr<vmm::Endpoint> endpoint;
  const std::uint64_t address;
  const std::uint64_t size;
  std::uint64_t requested_size;
  std::string text;
  std::atomic<bool> released = false;  // As `memory` says, without its lock.
  // Whether a release or restore goes on, which may take all of its timeout: others
  // look here, and do not wait for `mutex`, which it holds.
  mutable vmm::platform::Mutex turn_mutex;
  vmm::platform::CondVar turn_given;
  bool turn_taken ABSL_GUARDED_BY(turn_mutex) = false;
  mutable vmm::platform::Mutex mutex ABSL_ACQUIRED_AFTER(turn_mutex);
  Any memory ABSL_GUARDED_BY(mutex);
};

namespace {

using Any = vmmshare_restorable::Any;

// Runs `body` on the memory in the turn of `call`, its name for the message: those
// that release and restore one memory come one after the other.
absl::Status InTurn(vmmshare_restorable& of, vmm::Deadline deadline,
                    const char* call,
                    absl::FunctionRef<absl::Status(Any&)> body) {
  {
    const vmm::platform::MutexLock lock(of.turn_mutex);
    while (of.turn_taken) {
      if (deadline.Passed()) {
        return absl::DeadlineExceededError(absl::StrCat(
            call, "(): another release or restore of the ", of.size,
            " bytes went on until the timeout, and nothing was done. Call "
            "again when that has ended, or with a longer timeout."));
      }
      of.turn_given.WaitFor(of.turn_mutex, deadline.Slice());
    }
    of.turn_taken = true;
  }
  const absl::Cleanup give_turn = [&] {
    {
      const vmm::platform::MutexLock lock(of.turn_mutex);
      of.turn_taken = false;
    }
    of.turn_given.NotifyOne();
  };
  const vmm::platform::MutexLock lock(of.mutex);
  // Whatever is returned or thrown.
  const absl::Cleanup note = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(of.mutex) {
    of.released =
        std::visit([](const auto& it) { return it.is_released(); }, of.memory);
  };
  return body(of.memory);
}

absl::StatusOr<vmm::Fill> FillOf(const vmmshare_restore_options& given) {
  if (given.fill != nullptr && given.path != nullptr) {
    return absl::InvalidArgumentError(
        "both `fill` and `path` are given; expected at most one of them");
  }
  if (given.path != nullptr) return vmm::FillFromFile(given.path, given.offset);
  if (given.fill == nullptr) return vmm::Fill();
  return [given](const vmm::Allocation& memory) {
    return vmm::c::CallOwn("`fill`", [&] {
      return given.fill(given.user, memory.address(), memory.requested_size());
    });
  };
}

}  // namespace

vmmshare_status vmmshare_restorable_create(
    vmmshare_server* server, const vmmshare_device* device,
    const vmmshare_memory_options* options, vmmshare_restorable** restorable,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(restorable, "restorable"));
    RETURN_IF_ERROR(Check(server));
    RETURN_IF_ERROR(Check(device));
    ASSIGN_OR_RETURN(const vmm::AllocationOptions given,
                     vmm::c::AllocationOptionsOf(options));
    ASSIGN_OR_RETURN(vmm::Allocation memory,
                     vmm::Allocation::Create(device->device, given));
    ASSIGN_OR_RETURN(
        RestorableAllocation shared,
        RestorableAllocation::Share(*server->endpoint, std::move(memory)));
    *restorable = new vmmshare_restorable(std::move(shared), server->endpoint);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_restorable_open(const vmmshare_driver* driver,
                                         const char* text,
                                         const vmmshare_import_options* options,
                                         std::int64_t timeout_ns,
                                         vmmshare_restorable** restorable,
                                         vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(restorable, "restorable"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(CheckGiven(text, "text"));
    ASSIGN_OR_RETURN(const vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    ASSIGN_OR_RETURN(RestorableImport opened,
                     RestorableImport::Open(driver->driver, text, import,
                                            vmm::c::DeadlineOf(timeout_ns)));
    *restorable = new vmmshare_restorable(std::move(opened), nullptr);
    return absl::OkStatus();
  });
}

void vmmshare_restorable_close(vmmshare_restorable* restorable) {
  vmm::c::Close(restorable);
}

std::uint64_t vmmshare_restorable_address(
    const vmmshare_restorable* restorable) {
  return Check(restorable).ok() ? restorable->address : 0;
}

std::uint64_t vmmshare_restorable_size(const vmmshare_restorable* restorable) {
  return Check(restorable).ok() ? restorable->size : 0;
}

std::uint64_t vmmshare_restorable_requested_size(
    const vmmshare_restorable* restorable) {
  return Check(restorable).ok() ? restorable->requested_size : 0;
}

const char* vmmshare_restorable_text(const vmmshare_restorable* restorable) {
  return Check(restorable).ok() ? restorable->text.c_str() : "";
}

std::int32_t vmmshare_restorable_is_released(
    const vmmshare_restorable* restorable) {
  if (!Check(restorable).ok()) return 0;
  return restorable->released ? 1 : 0;
}

vmmshare_status vmmshare_restorable_lease(const vmmshare_restorable* restorable,
                                          std::int64_t* return_in_ns,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(return_in_ns, "return_in_ns", VMMSHARE_FOREVER));
    RETURN_IF_ERROR(Check(restorable));
    if (restorable->endpoint != nullptr) return vmm::c::WhyNoLease();
    // Held all the while: no release or restore begins before this has looked.
    const vmm::platform::MutexLock turn(restorable->turn_mutex);
    if (restorable->turn_taken) {
      return absl::FailedPreconditionError(
          "the memory is being released or restored by another call, so there "
          "is no lease to look at. Look again when that has ended.");
    }
    const vmm::platform::MutexLock lock(restorable->mutex);
    return vmm::c::ReportLease(
        std::get<RestorableImport>(restorable->memory).lease(), return_in_ns);
  });
}

vmmshare_status vmmshare_restorable_release(vmmshare_restorable* restorable,
                                            std::uint32_t flags,
                                            std::int64_t timeout_ns,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(restorable));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    const auto release = [&](Any& memory) -> absl::Status {
      auto* own = std::get_if<RestorableAllocation>(&memory);
      RETURN_IF_ERROR(vmm::c::CheckBits(
          flags, own == nullptr ? 0 : VMMSHARE_KEEP_NOTHING, "flags"));
      const vmm::Keep keep = (flags & VMMSHARE_KEEP_NOTHING) != 0
                                 ? vmm::Keep::kNothing
                                 : vmm::Keep::kHostMemory;
      return own != nullptr ? own->Release(keep, deadline)
                            : std::get<RestorableImport>(memory).Release();
    };
    return InTurn(*restorable, deadline, "vmmshare_restorable_release",
                  release);
  });
}

vmmshare_status vmmshare_restorable_restore(
    vmmshare_restorable* restorable, const vmmshare_restore_options* options,
    std::int64_t timeout_ns, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(restorable));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    ASSIGN_OR_RETURN(
        const vmmshare_restore_options given,
        vmm::c::ReadOptions(options, 40, "vmmshare_restore_options"));
    ASSIGN_OR_RETURN(const vmm::Fill fill, FillOf(given));
    const auto restore = [&](Any& memory) -> absl::Status {
      if (auto* own = std::get_if<RestorableAllocation>(&memory)) {
        return own->Restore(fill);
      }
      if (fill != nullptr) {
        return absl::InvalidArgumentError(
            "`fill` or `path` is given for another process's memory, which its "
            "owner fills. Pass no options.");
      }
      return std::get<RestorableImport>(memory).Restore(deadline);
    };
    return InTurn(*restorable, deadline, "vmmshare_restorable_restore",
                  restore);
  });
}
