#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/per_process.h"
#include "vmm/c/hooks.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/hook.h"
#include "vmm/c/restorable.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/device_work.h"
#include "vmm/memory/restorable_region.h"
#include "vmm/memory/stream_capture.h"

using vmm::RestorableRegion;
using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Clear;

struct vmmshare_region : vmm::c::Handle<vmm::c::HandleType::kRegion> {
  explicit vmmshare_region(vmm::Device device)
      : region(std::make_shared<RestorableRegion>(std::move(device))) {}
  const std::shared_ptr<RestorableRegion> region;
};

namespace {

// The regions from which the hooks of PyTorch take memory, or took some that is
// not free yet.
class TorchRegions {
 public:
  using Region = std::shared_ptr<RestorableRegion>;
  using Taken = std::map<CUdeviceptr, Region>::node_type;

  // Null: none from now on.
  absl::Status Set(std::int32_t device, Region region) {
    const vmm::platform::MutexLock lock(mutex_);
    Region& set = set_[device];
    if (set != nullptr && region != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a region is set for device ", device,
          ", and PyTorch does not say for which of two it asks. Set none "
          "when it is done with that one."));
    }
    if (releasing_.contains(region.get())) return IsReleased();
    set = std::move(region);
    return absl::OkStatus();
  }
  // Unless another one was set meanwhile.
  void Unset(const Region& region) {
    const vmm::platform::MutexLock lock(mutex_);
    const auto found = set_.find(region->device().ordinal());
    if (found != set_.end() && found->second == region) set_.erase(found);
  }
  static absl::Status IsReleased() {
    return absl::FailedPreconditionError(
        "the region is released: PyTorch would give out addresses where "
        "nothing is. Restore it first.");
  }

  // From here to EndRelease() it is not set: PyTorch would give out again what it
  // holds cached, where nothing is.
  absl::Status BeginRelease(const Region& region) {
    const vmm::platform::MutexLock lock(mutex_);
    const auto found = set_.find(region->device().ordinal());
    if (found != set_.end() && found->second == region) {
      return absl::FailedPreconditionError(
          "PyTorch takes memory from the region. Set none for the device "
          "before it is released.");
    }
    releasing_.insert(region.get());
    return absl::OkStatus();
  }
  void EndRelease(const Region& region) {
    const vmm::platform::MutexLock lock(mutex_);
    releasing_.erase(releasing_.find(region.get()));
  }

  absl::StatusOr<Region> Find(std::int32_t device) {
    const vmm::platform::MutexLock lock(mutex_);
    const auto found = set_.find(device);
    if (found != set_.end() && found->second != nullptr) return found->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "no region is set for device ", device, ". Set one first."));
  }
  void Remember(CUdeviceptr address, Region region) {
    const vmm::platform::MutexLock lock(mutex_);
    taken_from_.insert_or_assign(address, std::move(region));
  }
  // From which the memory at `address` was taken, which is forgotten.
  absl::StatusOr<Taken> Forget(CUdeviceptr address) {
    const vmm::platform::MutexLock lock(mutex_);
    Taken node = taken_from_.extract(address);
    if (!node.empty()) return node;
    return absl::NotFoundError(absl::StrCat(
        "address ", address,
        " is in no memory that a region of this process gave to PyTorch"));
  }
  // Remembers it again, for which it needs no memory.
  void PutBack(Taken taken) {
    const vmm::platform::MutexLock lock(mutex_);
    taken_from_.insert(std::move(taken));
  }

 private:
  vmm::platform::Mutex mutex_;
  std::map<std::int32_t, Region> set_ ABSL_GUARDED_BY(mutex_);
  // By calls that go on, which may be several of one.
  std::multiset<const RestorableRegion*> releasing_ ABSL_GUARDED_BY(mutex_);
  std::map<CUdeviceptr, Region> taken_from_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: PyTorch frees after the end of main().
constinit vmm::platform::PerProcess<TorchRegions> torch_regions;

// Until the device's work has ended. Unmapping is in the order of no stream, and
// PyTorch frees what such work may use still, as cudaFree() allows; also on others
// than `stream`, for which it allocated, as a graph's that was captured there. Is
// refused while that is captured.
absl::Status WaitFor(const vmm::Device& device, CUstream stream) {
  ASSIGN_OR_RETURN(const vmm::PrimaryContext context,
                   vmm::PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(const vmm::CurrentContext current, context.MakeCurrent());
  RETURN_IF_ERROR(vmm::CheckNotCaptured(
      device.driver(), stream, "free memory of a region",
      "each launch of the graph may use it: free it after "
      "cuStreamEndCapture()"));
  return vmm::AwaitDeviceWork(device);
}

}  // namespace

vmmshare_status vmmshare_region_create(const vmmshare_device* device,
                                       vmmshare_region** region,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(region, "region"));
    RETURN_IF_ERROR(Check(device));
    *region = new vmmshare_region(device->device);
    return absl::OkStatus();
  });
}

void vmmshare_region_close(vmmshare_region* region) { vmm::c::Close(region); }

vmmshare_status vmmshare_region_allocate(vmmshare_region* region,
                                         std::uint64_t size,
                                         std::uint64_t* address,
                                         vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(address, "address"));
    RETURN_IF_ERROR(Check(region));
    ASSIGN_OR_RETURN(*address, region->region->Allocate(size));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_region_free(vmmshare_region* region,
                                     std::uint64_t address,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(region));
    return region->region->Free(address);
  });
}

vmmshare_status vmmshare_region_release(vmmshare_region* region,
                                        std::uint32_t flags,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(region));
    RETURN_IF_ERROR(vmm::c::CheckBits(flags, VMMSHARE_KEEP_NOTHING, "flags"));
    TorchRegions& regions = torch_regions.Get();
    RETURN_IF_ERROR(regions.BeginRelease(region->region));
    const absl::Cleanup end = [&] { regions.EndRelease(region->region); };
    return region->region->Release((flags & VMMSHARE_KEEP_NOTHING) != 0
                                       ? vmm::Keep::kNothing
                                       : vmm::Keep::kHostMemory);
  });
}

vmmshare_status vmmshare_region_restore(vmmshare_region* region,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(region));
    return region->region->Restore();
  });
}

vmmshare_status vmmshare_region_get_statistics(
    const vmmshare_region* region, vmmshare_region_statistics* statistics,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(vmm::c::CheckResult(
        statistics, 40, "vmmshare_region_statistics", "statistics"));
    RETURN_IF_ERROR(Check(region));
    const vmm::RestorableRegionStatistics now = region->region->statistics();
    vmmshare_region_statistics out{};
    out.allocations = now.allocations;
    out.bytes = now.bytes;
    out.kept = now.kept;
    out.is_released = now.is_released ? 1 : 0;
    vmm::c::WriteResult(out, statistics);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_torch_set_region(std::int32_t device,
                                          vmmshare_region* region,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (region == nullptr) {
      TorchRegions* const regions = torch_regions.Find();
      return regions == nullptr ? absl::OkStatus()
                                : regions->Set(device, nullptr);
    }
    RETURN_IF_ERROR(Check(region));
    RETURN_IF_ERROR(
        vmm::c::CheckDevice("region", region->region->device(), device));
    TorchRegions& regions = torch_regions.Get();
    RETURN_IF_ERROR(regions.Set(device, region->region));
    // Asked last: from here on no release of it begins.
    if (region->region->statistics().is_released) {
      regions.Unset(region->region);
      return TorchRegions::IsReleased();
    }
    return absl::OkStatus();
  });
}

void* vmmshare_torch_region_alloc(size_t size, int device, void*) {
  void* pointer = nullptr;
  vmm::c::Hook(torch_regions.IsOfParentAlone(), [&]() -> absl::Status {
    if (size == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto region, torch_regions.Get().Find(device));
    ASSIGN_OR_RETURN(const CUdeviceptr address, region->Allocate(size));
    absl::Cleanup give_back = [&] { region->Free(address).IgnoreError(); };
    torch_regions.Get().Remember(address, region);
    std::move(give_back).Cancel();
    pointer = reinterpret_cast<void*>(address);
    return absl::OkStatus();
  });
  return pointer;
}

void vmmshare_torch_region_free(void* pointer, size_t, int, void* stream) {
  if (pointer == nullptr) return;
  vmm::c::Hook(torch_regions.IsOfParentAlone(), [&]() -> absl::Status {
    const auto address = reinterpret_cast<CUdeviceptr>(pointer);
    TorchRegions& regions = torch_regions.Get();
    ASSIGN_OR_RETURN(TorchRegions::Taken taken, regions.Forget(address));
    const auto region = taken.mapped();
    // So that it can be freed again. It is not forgotten last: when it is free,
    // others may be given the address.
    absl::Cleanup put_back = [&] { regions.PutBack(std::move(taken)); };
    RETURN_IF_ERROR(WaitFor(region->device(), vmm::c::StreamOf(stream)));
    std::move(put_back).Cancel();
    return region->Free(address);
  });
}
