// Memory between processes: cuMemExportToShareableHandle and its opposite, and what
// becomes of memory that another driver made.
#include "platform/hostdriver/fabric_memory.h"
#include "platform/hostdriver/physical_memory.h"

namespace vmm::hostdriver {

std::shared_ptr<Memory> AdoptMemory(const State& state,
                                    const OpenedMemory& opened) {
  std::shared_ptr<Memory> memory = AdoptOfAnyMachine(state, opened);
  if (memory->label.instance != state.config.machine) return nullptr;
  return memory;
}

std::shared_ptr<Memory> AdoptOfAnyMachine(const State& state,
                                          const OpenedMemory& opened) {
  auto memory = std::make_shared<Memory>();
  memory->os = opened.memory;  // Closed with it from here on.
  memory->size = opened.size;
  memory->label = opened.label;
  memory->imported = true;
  Locate(state, memory.get());
  return memory;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemExportToShareableHandle(
    void* shareable, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemExportToShareableHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Memory> memory =
      FindMemory(state, "cuMemExportToShareableHandle", handle);
  const auto asked = static_cast<unsigned long long>(type);
  if (shareable == nullptr || memory == nullptr || flags != 0 ||
      (asked != kNativeHandleType && asked != CU_MEM_HANDLE_TYPE_FABRIC) ||
      (memory->handle_types & asked) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (asked == CU_MEM_HANDLE_TYPE_FABRIC) {
    return ExportFabric(state, *memory, shareable);
  }
  const std::optional<OsMemory> copy = DuplicateMemory(memory->os);
  if (!copy) return CUDA_ERROR_OPERATING_SYSTEM;
  StoreExported(*copy, shareable);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle* handle, void* os_handle,
    CUmemAllocationHandleType type) {
  RETURN_IF_FAILED(Enter("cuMemImportFromShareableHandle"));
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto asked = static_cast<unsigned long long>(type);
  if (asked == CU_MEM_HANDLE_TYPE_FABRIC) {
    State& state = GetState();
    const Lock lock(state.mu);
    std::shared_ptr<Memory> memory;
    RETURN_IF_FAILED(ImportFabric(state, os_handle, &memory));
    *handle = Register(state, memory);
    return CUDA_SUCCESS;
  }
  if (asked != kNativeHandleType) {
    const bool is_of_windows = asked == CU_MEM_HANDLE_TYPE_WIN32_KMT ||
                               asked == CU_MEM_HANDLE_TYPE_WIN32;
    return is_of_windows ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  const std::optional<OpenedMemory> opened =
      OpenExported(reinterpret_cast<std::intptr_t>(os_handle));
  if (!opened) return CUDA_ERROR_UNKNOWN;
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Memory> memory = AdoptMemory(state, *opened);
  // Blocks and pools are shared in ways of their own.
  if (memory == nullptr || !memory->label.IsCreated()) {
    return CUDA_ERROR_UNKNOWN;
  }
  *handle = Register(state, memory);
  return CUDA_SUCCESS;
}
