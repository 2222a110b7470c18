// Work in a stream that is not a copy: values in memory, host functions.
#include <atomic>
#include <utility>
#include <vector>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/event.h"
#include "platform/hostdriver/stream.h"

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

// The word at `address`, for the device of the stream.
CUresult ResolveWord(State& state, const Stream& stream, CUdeviceptr address,
                     CUmemAccess_flags needed, Piece* piece) {
  if (address == 0 || address % sizeof(std::uint64_t) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Piece> pieces;
  const CUresult result = Resolve(state, address, sizeof(std::uint64_t),
                                  stream.context->device, needed, &pieces);
  if (result != CUDA_SUCCESS) return result;
  if (pieces.size() != 1) return CUDA_ERROR_INVALID_VALUE;  // A block's end.
  *piece = pieces[0];
  return CUDA_SUCCESS;
}

std::atomic_ref<std::uint64_t> WordIn(const Piece& piece) {
  return std::atomic_ref<std::uint64_t>(
      *reinterpret_cast<std::uint64_t*>(piece.data));
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuStreamWriteValue64(CUstream id, CUdeviceptr address,
                                      cuuint64_t value, unsigned int flags) {
  if (CUresult r = Enter("cuStreamWriteValue64"); r != CUDA_SUCCESS) return r;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  if (CUresult r = FindStream(state, "cuStreamWriteValue64", id, &stream);
      r != CUDA_SUCCESS) {
    return r;
  }
  Piece word;
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT &&
      flags != CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = ResolveWord(state, *stream, address,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &word);
      r != CUDA_SUCCESS) {
    return r;
  }
  return Submit(
      state, stream,
      [address, value, device = stream->context->device](State& now, Lock&) {
        std::vector<Piece> pieces;
        if (Resolve(now, address, sizeof(value), device,
                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                    &pieces) != CUDA_SUCCESS) {
          return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        WordIn(pieces[0]).store(value);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream id, CUdeviceptr address,
                                     cuuint64_t value, unsigned int flags) {
  if (CUresult r = Enter("cuStreamWaitValue64"); r != CUDA_SUCCESS) return r;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  if (CUresult r = FindStream(state, "cuStreamWaitValue64", id, &stream);
      r != CUDA_SUCCESS) {
    return r;
  }
  if (flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  Piece word;
  if (CUresult r = ResolveWord(state, *stream, address,
                               CU_MEM_ACCESS_FLAGS_PROT_READ, &word);
      r != CUDA_SUCCESS) {
    return r;
  }
  return Submit(
      state, stream,
      [address, value, flags, weak = std::weak_ptr<Stream>(stream)](
          State& now, Lock& held) {
        const std::shared_ptr<Stream> self = weak.lock();
        if (self == nullptr) return CUDA_SUCCESS;
        CUresult result = CUDA_SUCCESS;
        PollUntil(now, held, [&] {
          if (MustAbandon(now, *self)) return true;
          // Looked up each time: memory unmapped under a waiting stream is a
          // fault, not a reason to wait for ever.
          std::vector<Piece> pieces;
          if (Resolve(now, address, sizeof(value), self->context->device,
                      CU_MEM_ACCESS_FLAGS_PROT_READ, &pieces) != CUDA_SUCCESS) {
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
            return true;
          }
          return IsMet(WordIn(pieces[0]).load(), value, flags);
        });
        return result;
      });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream id, CUhostFn function, void* data) {
  if (CUresult r = Enter("cuLaunchHostFunc"); r != CUDA_SUCCESS) return r;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  if (CUresult r = FindStream(state, "cuLaunchHostFunc", id, &stream);
      r != CUDA_SUCCESS) {
    return r;
  }
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Submit(state, stream, [function, data](State&, Lock& held) {
    held.unlock();
    SetInHostFunction(true);
    function(data);
    SetInHostFunction(false);
    held.lock();
    return CUDA_SUCCESS;
  });
}
