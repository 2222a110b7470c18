// cuMemcpy and cuMemcpyAsync, which tell from the addresses what they copy.
#include <cstring>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// Whether the driver has memory at `address`; otherwise it is the program's.
bool IsDrivers(CUdeviceptr address) {
  State& state = GetState();
  const Lock lock(state.mu);
  return MappingAt(state, address) != state.mappings.end() ||
         BlockAt(state, address) != state.blocks.end() ||
         SegmentAt(state, address) != nullptr;
}

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult CopyOnHost(const char* call, CUdeviceptr to, CUdeviceptr from,
                    std::size_t size, CUstream id, bool wait) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, call, id, &stream));
  const Work work = [to, from, size](State&, Lock& held) {
    held.unlock();
    std::memmove(Pointer(to), Pointer(from), size);
    held.lock();
    return CUDA_SUCCESS;
  };
  return wait ? RunAndWait(state, lock, stream, work)
              : Submit(state, stream, work);
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

// Counted as what they are: cuMemcpyHtoD and so on, or, from the program's
// memory to the program's, by their own names.

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  if (CurrentPhase() != Phase::kReady) return Enter("cuMemcpy");
  const bool to_drivers = IsDrivers(to);
  if (IsDrivers(from)) {
    return to_drivers ? cuMemcpyDtoD(to, from, size)
                      : cuMemcpyDtoH(Pointer(to), from, size);
  }
  return to_drivers
             ? cuMemcpyHtoD(to, Pointer(from), size)
             : CopyOnHost("cuMemcpy", to, from, size, nullptr, /*wait=*/true);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from,
                               std::size_t size, CUstream stream) {
  if (CurrentPhase() != Phase::kReady) return Enter("cuMemcpyAsync");
  const bool to_drivers = IsDrivers(to);
  if (IsDrivers(from)) {
    return to_drivers ? cuMemcpyDtoDAsync(to, from, size, stream)
                      : cuMemcpyDtoHAsync(Pointer(to), from, size, stream);
  }
  return to_drivers ? cuMemcpyHtoDAsync(to, Pointer(from), size, stream)
                    : CopyOnHost("cuMemcpyAsync", to, from, size, stream,
                                 /*wait=*/false);
}
