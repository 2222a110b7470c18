// Managed memory, as far as a program that shares memory has to tell it from
// others: made, asked after, copied, freed. Nothing moves: both the CPU and the
// device have it where it is. Taken from the documentation, not measured.
#include "platform/hostdriver/blocks.h"
#include "platform/hostdriver/context.h"

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, std::size_t size,
                                   unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuMemAllocManaged"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (address == nullptr || size == 0 ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return MakeHostBlock(state, context, size, context->device, address);
}
