// Work in a stream that is not a copy: values in memory, host functions.
#include <atomic>
#include <vector>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/event.h"
#include "platform/hostdriver/stream.h"
#include "platform/hostdriver/stream_words.h"

namespace vmm::hostdriver {
namespace {

bool IsMet(std::uint64_t now, std::uint64_t value, unsigned int condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:  // Cyclic, as CUDA documents it.
      return static_cast<std::int64_t>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:  // CU_STREAM_WAIT_VALUE_NOR.
      return ~(now | value) != 0;
  }
}

// What can be told when the call is made: the address is aligned and mapped, and
// of no stream-ordered pool. Measured: access is looked at only when the work runs.
CUresult CheckWord(State& state, CUdeviceptr address) {
  const auto block = BlockAt(state, address);
  const bool known =
      MappingAt(state, address) != state.mappings.end() ||
      (block != state.blocks.end() && block->second.pool == nullptr);
  return known && address % sizeof(std::uint64_t) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// The word at `address` as the work finds it; null if the device faults there.
struct Word {
  std::shared_ptr<void> keep;
  std::uint64_t* value = nullptr;
};

Word FindWord(State& state, CUdeviceptr address, int device,
              CUmemAccess_flags needed) {
  std::vector<Piece> pieces;
  if (Resolve(state, address, sizeof(std::uint64_t), device, needed,
              When::kRunning, &pieces) != CUDA_SUCCESS ||
      pieces.size() != 1) {
    return {};
  }
  return {pieces[0].keep, reinterpret_cast<std::uint64_t*>(pieces[0].data)};
}

}  // namespace

bool StoreWord(State& state, int device, CUdeviceptr address,
               std::uint64_t value) {
  const Word word =
      FindWord(state, address, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (word.value == nullptr) return false;
  std::atomic_ref<std::uint64_t>(*word.value).store(value);
  return true;
}

bool AddToWord(State& state, int device, CUdeviceptr address,
               std::uint64_t value) {
  const Word word =
      FindWord(state, address, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (word.value == nullptr) return false;
  std::atomic_ref<std::uint64_t>(*word.value).fetch_add(value);
  return true;
}

bool AwaitWord(State& state, Lock& held, const Context& context,
               CUdeviceptr address, std::uint64_t value,
               unsigned int condition) {
  bool is_there = true;
  PollUntil(state, held, [&] {
    if (MustGiveUp(state, context)) return true;
    // Looked up each time: memory unmapped under a waiting stream is a fault,
    // not a reason to wait for ever.
    const Word word =
        FindWord(state, address, context.device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    is_there = word.value != nullptr;
    return !is_there ||
           IsMet(std::atomic_ref<std::uint64_t>(*word.value).load(), value,
                 condition);
  });
  return is_there;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuStreamWriteValue64(CUstream id, CUdeviceptr address,
                                      cuuint64_t value, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuStreamWriteValue64"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamWriteValue64", id, &stream));
  // Measured: CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER is refused too.
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(CheckWord(state, address));
  const int device = stream->context->device;
  return Submit(
      state, stream,
      [address, value, device](State& now, Lock&) {
        return StoreWord(now, device, address, value)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_LAUNCH_FAILED;
      },
      Queue::kOfLast);
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream id, CUdeviceptr address,
                                     cuuint64_t value, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuStreamWaitValue64"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamWaitValue64", id, &stream));
  if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;  // Measured.
  }
  if (flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(CheckWord(state, address));
  return Submit(
      state, stream,
      [address, value, flags, context = stream->context](State& now,
                                                         Lock& held) {
        return AwaitWord(now, held, *context, address, value, flags)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_LAUNCH_FAILED;
      },
      Queue::kWait);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream id, CUhostFn function, void* data) {
  RETURN_IF_FAILED(Enter("cuLaunchHostFunc"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuLaunchHostFunc", id, &stream));
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Submit(
      state, stream,
      [function, data](State&, Lock& held) {
        held.unlock();
        SetInHostFunction(true);
        function(data);
        SetInHostFunction(false);
        held.lock();
        return CUDA_SUCCESS;
      },
      Queue::kNone);
}
