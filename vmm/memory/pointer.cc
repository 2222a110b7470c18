#include "vmm/memory/internal/pointer.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/device.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

struct Attributes {
  unsigned memory_type = 0;
  // The driver writes a whole word for a bool (observed), so give it one.
  unsigned is_managed = 0;
  unsigned is_legacy_ipc_capable = 0;
  unsigned long long handle_types = 0;
  CUmemoryPool pool = nullptr;
  CUdeviceptr range_base = 0;
  std::size_t range_size = 0;
};

// One call for all: unknown addresses answer success and zeros (measured),
// where the call for a single attribute answers an error.
absl::StatusOr<Attributes> Read(const Driver& driver, CUdeviceptr pointer) {
  Attributes a;
  std::array<CUpointer_attribute, 7> names = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, 7> values = {
      &a.memory_type,  &a.is_managed, &a.is_legacy_ipc_capable,
      &a.handle_types, &a.pool,       &a.range_base,
      &a.range_size};
  if (CUresult r = driver->cuPointerGetAttributes(names.size(), names.data(),
                                                  values.data(), pointer);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuPointerGetAttributes(",
                                        DescribePointer(pointer), ")"));
  }
  return a;
}

std::string AdviceFor(PointerKind kind, HandleKindSet kinds) {
  switch (kind) {
    case PointerKind::kNotCuda:
      return "The driver does not know this address: it is plain host memory "
             "or nothing is mapped there. Allocate it with vmmshare.";
    case PointerKind::kVmm:
      return kinds.empty()
                 ? "It was created without a shareable handle kind, or was "
                   "imported from another process. Its creator must ask for a "
                   "kind when creating it; who imported it passes on the "
                   "original handle."
                 : "";
    case PointerKind::kPool:
      return kinds.empty()
                 ? "It comes from a stream-ordered pool (cuMemAllocAsync) that "
                   "was not made exportable, or from one of another process. "
                   "Copy into memory allocated with vmmshare."
                 : "It comes from a stream-ordered pool (cuMemAllocAsync), by "
                   "which it can be shared where it is, in a weaker way: "
                   "accept HandleKind::kStreamPool (in Python legacy=True). "
                   "Or copy into memory allocated with vmmshare.";
    case PointerKind::kDeviceAlloc:
      return kinds.empty()
                 ? "It comes from cuMemAlloc or cudaMalloc, and the driver "
                   "says that legacy CUDA IPC cannot share it: another process "
                   "made it. Copy into memory allocated with vmmshare."
                 : "It comes from cuMemAlloc or cudaMalloc, which only legacy "
                   "CUDA IPC can share where it is, in a weaker way: accept "
                   "HandleKind::kLegacyIpc (in Python legacy=True). Or copy "
                   "into memory allocated with vmmshare; in PyTorch set "
                   "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.";
    case PointerKind::kManaged:
      return "Its pages move between the host and devices, so it has no "
             "handle. Copy into memory allocated with vmmshare.";
    case PointerKind::kPinnedHost:
      return "It is pinned host memory, which cannot be shared as a handle. "
             "Allocate with AllocationOptions::host_numa_node (in C "
             "VMMSHARE_ON_HOST, in Python host_node=).";
  }
  return "";
}

PointerKind KindOf(const Attributes& a, bool is_vmm) {
  if (is_vmm) return PointerKind::kVmm;
  if (a.memory_type == 0) return PointerKind::kNotCuda;
  if ((a.is_managed & 0xff) != 0) return PointerKind::kManaged;
  if (a.pool != nullptr) return PointerKind::kPool;
  if (a.memory_type == CU_MEMORYTYPE_HOST) return PointerKind::kPinnedHost;
  return PointerKind::kDeviceAlloc;
}

}  // namespace

absl::string_view NameOf(PointerKind kind) {
  switch (kind) {
    case PointerKind::kNotCuda:
      return "not CUDA memory";
    case PointerKind::kVmm:
      return "VMM memory";
    case PointerKind::kPool:
      return "stream-ordered pool memory";
    case PointerKind::kDeviceAlloc:
      return "cuMemAlloc memory";
    case PointerKind::kManaged:
      return "managed memory";
    case PointerKind::kPinnedHost:
      return "pinned host memory";
  }
  return "unknown memory";
}

std::string DescribePointer(CUdeviceptr pointer) {
  return absl::StrCat("pointer 0x", absl::Hex(pointer));
}

absl::StatusOr<PointerInfo> Classify(const Driver& driver,
                                     CUdeviceptr pointer) {
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const Attributes attributes, Read(driver, pointer));
  ASSIGN_OR_RETURN(const OwnedMemoryHandle chunk,
                   RetainMemoryAt(driver, pointer));
  PointerInfo info;
  std::string unknown_place;
  info.kind = KindOf(attributes, chunk.has_value());
  if (info.kind == PointerKind::kVmm) {
    info.kinds = HandleKindSet::FromCuda(attributes.handle_types);
    ASSIGN_OR_RETURN(const CUmemAllocationProp properties,
                     PropertiesOf(driver, chunk.get().handle));
    const Place place = PlaceOf(properties.location);
    info.host_numa_node = place.host_numa_node;
    info.device_ordinal = place.device_ordinal;
    unknown_place = place.unknown;
  }
  // Of addresses that are only reserved the driver tells the range all the same
  // (measured).
  if (info.kind != PointerKind::kNotCuda) {
    info.range_base = attributes.range_base;
    info.range_size = attributes.range_size;
  }
  if (info.kind == PointerKind::kDeviceAlloc &&
      (attributes.is_legacy_ipc_capable & 0xff) != 0) {
    info.kinds = {HandleKind::kLegacyIpc};
  }
  if (info.kind == PointerKind::kPool && attributes.handle_types != 0) {
    info.kinds = {HandleKind::kStreamPool};
  }
  info.adoptable = info.kind == PointerKind::kVmm && !info.kinds.empty() &&
                   unknown_place.empty();
  info.advice =
      unknown_place.empty() ? AdviceFor(info.kind, info.kinds) : unknown_place;
  return info;
}

absl::StatusOr<int> PointerOrdinal(const Driver& driver, CUdeviceptr pointer) {
  int ordinal = 0;
  CUresult r = driver->cuPointerGetAttribute(
      &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  if (r == CUDA_SUCCESS) return ordinal;
  return driver.Error(r, absl::StrCat("cuPointerGetAttribute(DEVICE_ORDINAL, ",
                                      DescribePointer(pointer), ")"));
}

absl::StatusOr<CUmemAllocationProp> PropertiesOf(
    const Driver& driver, CUmemGenericAllocationHandle chunk) {
  CUmemAllocationProp properties{};
  const CUresult r =
      driver->cuMemGetAllocationPropertiesFromHandle(&properties, chunk);
  if (r == CUDA_SUCCESS) return properties;
  return driver.Error(r,
                      "cuMemGetAllocationPropertiesFromHandle(memory handle)");
}

absl::StatusOr<std::optional<int>> ReachedFrom(const Driver& driver,
                                               CUdeviceptr pointer,
                                               const PointerInfo& info) {
  if (info.kind == PointerKind::kNotCuda) return std::nullopt;
  if (info.kind != PointerKind::kVmm) {
    return PointerOrdinal(driver, pointer);
  }
  ASSIGN_OR_RETURN(const std::vector<Device> devices, Device::All(driver));
  std::optional<int> first;
  for (const Device& device : devices) {
    const CUmemLocation where = Location::On(device).ToCuda();
    unsigned long long access = 0;
    if (CUresult r = driver->cuMemGetAccess(&access, &where, pointer);
        r != CUDA_SUCCESS) {
      return driver.Error(r, absl::StrCat("cuMemGetAccess(", device.Describe(),
                                          ", ", DescribePointer(pointer), ")"));
    }
    if (access == 0) continue;
    if (device.ordinal() == info.device_ordinal) return device.ordinal();
    if (!first.has_value()) first = device.ordinal();
  }
  return first;
}

}  // namespace vmm
