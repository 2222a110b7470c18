// Priorities and flags of streams: told, and of no effect.
#include <algorithm>

#include "platform/hostdriver/context.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// Of an H100. Lower numbers come first.
constexpr int kLeast = 0;
constexpr int kGreatest = -5;

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  RETURN_IF_FAILED(Enter("cuCtxGetStreamPriorityRange"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (least != nullptr) *least = kLeast;
  if (greatest != nullptr) *greatest = kGreatest;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* id, unsigned int flags,
                                            int priority) {
  RETURN_IF_FAILED(Enter("cuStreamCreateWithPriority"));
  State& state = GetState();
  const Lock lock(state.mu);
  // As cuda.h has it: one out of range becomes the next within.
  return MakeStream(state, flags, std::clamp(priority, kGreatest, kLeast), id);
}

CUresult CUDAAPI cuStreamGetPriority(CUstream id, int* priority) {
  RETURN_IF_FAILED(Enter("cuStreamGetPriority"));
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  const CUresult result =
      LookUpStream(state, "cuStreamGetPriority", id, &stream);
  if (result == CUDA_SUCCESS) *priority = stream->priority;
  return result;
}

CUresult CUDAAPI cuStreamGetFlags(CUstream id, unsigned int* flags) {
  RETURN_IF_FAILED(Enter("cuStreamGetFlags"));
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  const CUresult result = LookUpStream(state, "cuStreamGetFlags", id, &stream);
  if (result == CUDA_SUCCESS) {
    *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  }
  return result;
}
