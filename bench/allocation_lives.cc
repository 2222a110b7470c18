#include "bench/allocation_lives.h"

#include <cuda.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "platform/cuda/handle_attributes.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"

namespace bench {
namespace {

using vmm::platform::Driver;
using vmm::platform::OsHandle;

// Times the steps one after the other; what happens between Begin() calls and
// outside of steps is not counted.
class StepClock {
 public:
  void Begin() { start_ = Now(); }
  void End(Step step) {
    times_[static_cast<std::size_t>(step)] =
        std::chrono::duration<double, std::micro>(Now() - start_).count();
  }
  const StepTimes& times() const { return times_; }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point Now() { return Clock::now(); }

  Clock::time_point start_;
  StepTimes times_{};
};

// Reserves, maps and gives access, as bare calls.
absl::StatusOr<CUdeviceptr> MapBare(const Driver& driver, CUdevice device,
                                    CUmemGenericAllocationHandle handle,
                                    std::uint64_t size,
                                    CUmemAccess_flags access) {
  CUdeviceptr address = 0;
  CUresult r = driver->cuMemAddressReserve(&address, size, 0, 0, 0);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemAddressReserve()");
  r = driver->cuMemMap(address, size, 0, handle, 0);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemMap()");
  CUmemAccessDesc grant{};
  grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  grant.location.id = device;
  grant.flags = access;
  r = driver->cuMemSetAccess(address, size, &grant, 1);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemSetAccess()");
  return address;
}

absl::Status ReleaseBare(const Driver& driver, CUdeviceptr address,
                         CUmemGenericAllocationHandle handle,
                         std::uint64_t size) {
  CUresult r = driver->cuMemUnmap(address, size);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemUnmap()");
  r = driver->cuMemAddressFree(address, size);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemAddressFree()");
  r = driver->cuMemRelease(handle);
  return driver.Error(r, "cuMemRelease()");
}

}  // namespace

absl::string_view NameOf(Step step) {
  switch (step) {
    case Step::kCreate:
      return "create";
    case Step::kExport:
      return "export";
    case Step::kImport:
      return "import";
    case Step::kReleaseImport:
      return "release import";
    case Step::kRelease:
      return "release";
  }
  return "?";
}

absl::StatusOr<StepTimes> LifeByVmmshare(const vmm::Device& device,
                                         std::uint64_t size) {
  absl::StatusOr<const vmm::Exporter*> exporter =
      vmm::FindExporter(NativeKind());
  if (!exporter.ok()) return exporter.status();
  StepClock clock;

  clock.Begin();
  absl::StatusOr<vmm::Allocation> created =
      vmm::Allocation::Create(device, {.size = size});
  clock.End(Step::kCreate);
  if (!created.ok()) return created.status();
  std::optional<vmm::Allocation> memory = *std::move(created);

  clock.Begin();
  absl::StatusOr<vmm::ExportedHandle> exported = (*exporter)->make(
      device.driver(), memory->shareable().memory()->handle(0));
  clock.End(Step::kExport);
  if (!exported.ok()) return exported.status();

  absl::StatusOr<vmm::Ticket> ticket =
      vmm::MakeTicket(memory->shareable(), NativeKind());
  if (!ticket.ok()) return ticket.status();
  std::vector<vmm::ExportedHandle> handles;
  handles.push_back(*std::move(exported));

  clock.Begin();
  absl::StatusOr<vmm::ImportedAllocation> opened =
      vmm::ImportedAllocation::Open(device.driver(), *ticket, handles, {});
  clock.End(Step::kImport);
  if (!opened.ok()) return opened.status();
  std::optional<vmm::ImportedAllocation> imported = *std::move(opened);
  handles.clear();

  clock.Begin();
  imported.reset();
  clock.End(Step::kReleaseImport);
  clock.Begin();
  memory.reset();
  clock.End(Step::kRelease);
  return clock.times();
}

absl::StatusOr<StepTimes> LifeByBareCalls(const vmm::Device& device,
                                          std::uint64_t size) {
  const Driver& driver = device.driver();
  const auto kind = static_cast<CUmemAllocationHandleType>(NativeKind());
  const absl::StatusOr<void*> attributes =
      vmm::platform::NativeHandleAttributes();
  if (!attributes.ok()) return attributes.status();
  StepClock clock;

  clock.Begin();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kind;
  properties.win32HandleMetaData = *attributes;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.cuda_device();
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = driver->cuMemCreate(&handle, size, &properties, 0);
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuMemCreate()");
  absl::StatusOr<CUdeviceptr> address =
      MapBare(driver, device.cuda_device(), handle, size,
              CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  clock.End(Step::kCreate);
  if (!address.ok()) return address.status();

  clock.Begin();
  // As wide as a HANDLE; a descriptor fills the lower half.
  OsHandle::Value descriptor = 0;
  r = driver->cuMemExportToShareableHandle(&descriptor, handle, kind, 0);
  clock.End(Step::kExport);
  if (r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemExportToShareableHandle()");
  }
  OsHandle exported = OsHandle::Adopt(descriptor);

  clock.Begin();
  CUmemGenericAllocationHandle imported = 0;
  r = driver->cuMemImportFromShareableHandle(
      &imported, reinterpret_cast<void*>(exported.get()), kind);
  if (r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemImportFromShareableHandle()");
  }
  absl::StatusOr<CUdeviceptr> view =
      MapBare(driver, device.cuda_device(), imported, size,
              CU_MEM_ACCESS_FLAGS_PROT_READ);
  clock.End(Step::kImport);
  if (!view.ok()) return view.status();
  exported.Reset();

  clock.Begin();
  absl::Status released = ReleaseBare(driver, *view, imported, size);
  clock.End(Step::kReleaseImport);
  if (!released.ok()) return released;
  clock.Begin();
  released = ReleaseBare(driver, *address, handle, size);
  clock.End(Step::kRelease);
  if (!released.ok()) return released;
  return clock.times();
}

}  // namespace bench
