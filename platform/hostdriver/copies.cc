// Copies and fills: cuMemcpy*, cuMemset*.
//
// Whether a call without a stream waits is as CUDA documents it ("API
// synchronization behavior"). It waits for all it does where memory of the host
// is read or written in place; what stays on devices goes on after the call,
// and so does the second half of a copy from pageable memory.
#include <cstdint>
#include <utility>
#include <vector>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/pieces.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

constexpr CUmemAccess_flags kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr CUmemAccess_flags kWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

// A range of device addresses and what is done to it.
struct Range {
  CUdeviceptr address = 0;
  std::size_t size = 0;
  CUmemAccess_flags needed = kRead;
};

// A transfer that touches `ranges` and is done by `transfer`, given the pieces
// of each. `stream_id` as the call got it. Waits for it if `wait`.
template <typename Transfer>
CUresult Perform(State& state, Lock& lock, const char* call, CUstream stream_id,
                 std::vector<Range> ranges, bool wait, const Transfer& transfer,
                 Queue queue = Queue::kShared) {
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, call, stream_id, &stream));
  const int device = stream->context->device;
  for (const Range& range : ranges) {
    std::vector<Piece> pieces;
    RETURN_IF_FAILED(Resolve(state, range.address, range.size, device,
                             range.needed, When::kSubmitted, &pieces));
  }
  Work work = [ranges = std::move(ranges), device, transfer](State& now,
                                                             Lock& held) {
    std::vector<std::vector<Piece>> all;
    for (const Range& range : ranges) {
      // Valid when submitted; if it is no more, the memory was unmapped under
      // the work, which on a GPU is a fault.
      if (Resolve(now, range.address, range.size, device, range.needed,
                  When::kRunning, &all.emplace_back()) != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    held.unlock();
    transfer(all);
    all.clear();
    held.lock();
    return CUDA_SUCCESS;
  };
  return wait ? RunAndWait(state, lock, stream, std::move(work), queue)
              : Submit(state, stream, std::move(work), queue);
}

// Whether `address` is in memory of cuMemHostAlloc() or cuMemAllocManaged().
bool IsHostBlock(State& state, CUdeviceptr address) {
  const auto block = BlockAt(state, address);
  return block != state.blocks.end() && block->second.on_host;
}

// Whether [data, data + size) is memory the device reads in its own time.
bool IsPinned(State& state, const void* data, std::size_t size) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  if (const auto block = BlockAt(state, address); block != state.blocks.end()) {
    return block->second.on_host &&
           size <= block->second.size - (address - block->first);
  }
  return MappingAt(state, address) != state.mappings.end();
}

// The NULL stream never is. Perform() finds the stream.
bool IsCaptured(const State& state, CUstream id) {
  const auto found = state.streams.find(id);
  return found != state.streams.end() && found->second->capture != nullptr;
}

// The start of every call here: for the NULL stream there must be a context in
// good order. A stream brings its own, which Perform() looks at.
CUresult Begin(State& state, CUstream stream) {
  if (stream != nullptr && stream != CU_STREAM_LEGACY) return CUDA_SUCCESS;
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  // Measured: also of nothing, and of what is nowhere.
  return RefuseImplicit(state, *context, /*invalidate=*/true);
}

CUresult BetweenDevices(State& state, Lock& lock, const char* call,
                        CUdeviceptr to, CUdeviceptr from, std::size_t size,
                        CUstream stream, bool wait) {
  wait = wait && (IsHostBlock(state, to) || IsHostBlock(state, from));
  return Perform(state, lock, call, stream,
                 {{to, size, kWrite}, {from, size, kRead}}, wait,
                 [](const auto& pieces) { CopyPieces(pieces[0], pieces[1]); });
}

CUresult HostToDevice(const char* call, CUdeviceptr to, const void* from,
                      std::size_t size, CUstream stream, bool wait) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  Lock lock(state.mu);
  RETURN_IF_FAILED(Begin(state, stream));
  if (size == 0) return CUDA_SUCCESS;
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Measured: device memory is taken as a source too.
  if (!CpuMayUse(state, from, size, /*write=*/false)) {
    return BetweenDevices(state, lock, call, to,
                          reinterpret_cast<CUdeviceptr>(from), size, stream,
                          wait);
  }
  auto* source = static_cast<std::byte*>(const_cast<void*>(from));
  // Pageable memory may be reused as soon as the call returns: the copy is of
  // what it held then. In a graph it is of what it holds at each launch.
  std::shared_ptr<std::vector<std::byte>> staged;
  if (!IsPinned(state, from, size) && !IsCaptured(state, stream)) {
    if (wait) {
      std::shared_ptr<Stream> null_stream;
      RETURN_IF_FAILED(FindStream(state, call, stream, &null_stream));
      RETURN_IF_FAILED(WaitForStream(state, lock, null_stream));
    }
    staged = std::make_shared<std::vector<std::byte>>(source, source + size);
    source = staged->data();
    wait = wait && IsHostBlock(state, to);
  }
  return Perform(state, lock, call, stream, {{to, size, kWrite}}, wait,
                 [source, size, staged](const auto& pieces) {
                   CopyPieces(pieces[0], {Piece{source, size, nullptr}});
                 });
}

CUresult DeviceToHost(const char* call, void* to, CUdeviceptr from,
                      std::size_t size, CUstream stream, bool wait) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  Lock lock(state.mu);
  RETURN_IF_FAILED(Begin(state, stream));
  if (size == 0) return CUDA_SUCCESS;
  if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!CpuMayUse(state, to, size, /*write=*/true)) {
    return BetweenDevices(state, lock, call, reinterpret_cast<CUdeviceptr>(to),
                          from, size, stream, wait);
  }
  // Documented: to pageable memory, the call returns when the copy is done.
  wait = wait || !IsPinned(state, to, size);
  return Perform(
      state, lock, call, stream, {{from, size, kRead}}, wait,
      [data = static_cast<std::byte*>(to), size](const auto& pieces) {
        CopyPieces({Piece{data, size, nullptr}}, pieces[0]);
      },
      Queue::kToHost);
}

CUresult DeviceToDevice(const char* call, CUdeviceptr to, CUdeviceptr from,
                        std::size_t size, CUstream stream, bool wait) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  Lock lock(state.mu);
  RETURN_IF_FAILED(Begin(state, stream));
  if (size == 0) return CUDA_SUCCESS;
  return BetweenDevices(state, lock, call, to, from, size, stream, wait);
}

// Measured on an H200: memory that the CPU reaches is not filled over a border
// between two cuMemCreate()s. Copies over it work, and so do fills of memory that
// devices alone reach, the host's too.
bool IsOverBorderOfTheCpus(State& state, CUdeviceptr to, std::size_t size) {
  const auto first = MappingAt(state, to);
  return first != state.mappings.end() &&
         first->second.cpu != CpuAccess::kNone &&
         size > first->first + first->second.memory->size - to;
}

CUresult Fill(const char* call, CUdeviceptr to, std::uint32_t value,
              std::size_t unit, std::size_t count, CUstream stream, bool wait) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  Lock lock(state.mu);
  RETURN_IF_FAILED(Begin(state, stream));
  if (count == 0) return CUDA_SUCCESS;
  if (to % unit != 0 || count > SIZE_MAX / unit ||
      IsOverBorderOfTheCpus(state, to, count * unit)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wait = wait && IsHostBlock(state, to);
  return Perform(state, lock, call, stream, {{to, count * unit, kWrite}}, wait,
                 [value, unit](const auto& pieces) {
                   FillPieces(pieces[0], value, unit);
                 });
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from,
                              std::size_t size) {
  return HostToDevice("cuMemcpyHtoD", to, from, size, nullptr, true);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from,
                                   std::size_t size, CUstream stream) {
  return HostToDevice("cuMemcpyHtoDAsync", to, from, size, stream, false);
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size) {
  return DeviceToHost("cuMemcpyDtoH", to, from, size, nullptr, true);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size,
                                   CUstream stream) {
  return DeviceToHost("cuMemcpyDtoHAsync", to, from, size, stream, false);
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from,
                              std::size_t size) {
  return DeviceToDevice("cuMemcpyDtoD", to, from, size, nullptr, true);
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from,
                                   std::size_t size, CUstream stream) {
  return DeviceToDevice("cuMemcpyDtoDAsync", to, from, size, stream, false);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value,
                            std::size_t count) {
  return Fill("cuMemsetD8", to, value, 1, count, nullptr, true);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                 std::size_t count, CUstream stream) {
  return Fill("cuMemsetD8Async", to, value, 1, count, stream, false);
}

CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value,
                             std::size_t count) {
  return Fill("cuMemsetD16", to, value, 2, count, nullptr, true);
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value,
                                  std::size_t count, CUstream stream) {
  return Fill("cuMemsetD16Async", to, value, 2, count, stream, false);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned int value,
                             std::size_t count) {
  return Fill("cuMemsetD32", to, value, 4, count, nullptr, true);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned int value,
                                  std::size_t count, CUstream stream) {
  return Fill("cuMemsetD32Async", to, value, 4, count, stream, false);
}
