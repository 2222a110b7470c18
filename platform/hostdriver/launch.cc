// cuLaunchKernel, and what is asked before one.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/module.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// Of an H100, as its documentation has it.
constexpr unsigned int kThreadsOfBlock = 1024;
constexpr unsigned int kThreadsOfMultiprocessor = 2048;
constexpr unsigned int kBlocksOfMultiprocessor = 32;
constexpr std::size_t kSharedOfMultiprocessor = std::size_t{228} * 1024;
constexpr std::size_t kSharedOfSystem = 1024;  // In each block.
constexpr std::size_t kSharedOfBlock =
    std::size_t{48} * 1024;  // Without an opt-in.

// Copies of a launch's arguments, kept until it is done.
class Arguments {
 public:
  Arguments(const Kernel& kernel, void* const* values) {
    std::size_t offset = 0;
    for (const std::size_t size : kernel.sizes) {
      offsets_.push_back(offset);
      // In words: whatever type an argument has, it is aligned.
      offset += (size + sizeof(Word) - 1) / sizeof(Word);
    }
    words_.resize(offset);
    for (std::size_t i = 0; i < kernel.sizes.size(); ++i) {
      std::memcpy(&words_[offsets_[i]], values[i], kernel.sizes[i]);
    }
  }

  // One pointer an argument, into this object. A kernel may write to them, and
  // a graph launches more than once: make them of a copy.
  std::vector<void*> Pointers() {
    std::vector<void*> pointers;
    pointers.reserve(offsets_.size());
    for (const std::size_t offset : offsets_) {
      pointers.push_back(&words_[offset]);
    }
    return pointers;
  }

 private:
  struct alignas(16) Word {
    unsigned char bytes[16];
  };
  std::vector<Word> words_;
  std::vector<std::size_t> offsets_;
};

// A kernel that runs: what it was given of the devices' memory.
struct Running {
  int device = 0;
  std::vector<Piece> pieces;
  bool faulted = false;
};

void* MemoryOf(const VmmshareHostLaunch* launch, unsigned long long address,
               std::size_t* size, int writes) {
  Running& running = *static_cast<Running*>(launch->driver);
  State& state = GetState();
  const Lock lock(state.mu);
  std::vector<Piece> pieces;
  const std::size_t wanted = size == nullptr ? 0 : *size;
  const CUmemAccess_flags needed = writes != 0
                                       ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                       : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (wanted == 0 || Resolve(state, address, wanted, running.device, needed,
                             When::kRunning, &pieces) != CUDA_SUCCESS) {
    running.faulted = true;
    return nullptr;
  }
  *size = pieces.front().size;
  running.pieces.push_back(pieces.front());
  return pieces.front().data;
}

// Without the lock.
CUresult RunKernel(const Kernel& kernel, VmmshareHostLaunch launch, int device,
                   Arguments arguments) {
  Running running;
  running.device = device;
  launch.driver = &running;
  const std::vector<void*> pointers = arguments.Pointers();
  SetInHostFunction(true);
  kernel.function(&launch, pointers.data());
  SetInHostFunction(false);
  return running.faulted ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

bool IsSize(const unsigned int (&size)[3]) {
  return size[0] != 0 && size[1] != 0 && size[2] != 0;
}

CUresult CheckSizes(const VmmshareHostLaunch& launch) {
  const unsigned int(&grid)[3] = launch.grid;
  const unsigned int(&block)[3] = launch.block;
  const bool fits = IsSize(grid) && IsSize(block) && grid[0] <= INT32_MAX &&
                    grid[1] <= UINT16_MAX && grid[2] <= UINT16_MAX &&
                    block[0] <= kThreadsOfBlock &&
                    block[1] <= kThreadsOfBlock && block[2] <= 64 &&
                    block[0] * block[1] <= kThreadsOfBlock &&
                    block[0] * block[1] * block[2] <= kThreadsOfBlock &&
                    launch.shared_bytes <= kSharedOfBlock;
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuLaunchKernel(CUfunction id, unsigned int grid_x,
                                unsigned int grid_y, unsigned int grid_z,
                                unsigned int block_x, unsigned int block_y,
                                unsigned int block_z, unsigned int shared_bytes,
                                CUstream stream_id, void** arguments,
                                void** extra) {
  RETURN_IF_FAILED(Enter("cuLaunchKernel"));
  State& state = GetState();
  const Lock lock(state.mu);
  Function function;
  RETURN_IF_FAILED(LookUpFunction(state, "cuLaunchKernel", id, &function));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuLaunchKernel", stream_id, &stream));
  if (function.context != nullptr && stream->context != function.context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  VmmshareHostLaunch launch{};
  launch.size = sizeof(launch);
  std::copy_n(std::begin({grid_x, grid_y, grid_z}), 3, launch.grid);
  std::copy_n(std::begin({block_x, block_y, block_z}), 3, launch.block);
  launch.shared_bytes = shared_bytes;
  launch.memory = &MemoryOf;
  RETURN_IF_FAILED(CheckSizes(launch));
  if (extra != nullptr) {
    return arguments != nullptr ? CUDA_ERROR_INVALID_VALUE
                                : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (arguments == nullptr && !function.kernel->sizes.empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (function.kernel->own != nullptr) {
    return Submit(state, stream, function.kernel->own(stream, arguments));
  }
  Work work =
      [kernel = function.kernel, launch, device = stream->context->device,
       copied = Arguments(*function.kernel, arguments)](State&, Lock& held) {
        held.unlock();
        const CUresult result = RunKernel(*kernel, launch, device, copied);
        held.lock();
        return result;
      };
  return Submit(state, stream, std::move(work));
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, CUfunction id, int threads, std::size_t shared_bytes) {
  RETURN_IF_FAILED(Enter("cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  State& state = GetState();
  const Lock lock(state.mu);
  Function function;
  RETURN_IF_FAILED(LookUpFunction(
      state, "cuOccupancyMaxActiveBlocksPerMultiprocessor", id, &function));
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto wanted = static_cast<unsigned int>(threads);
  if (wanted > kThreadsOfBlock || shared_bytes > kSharedOfBlock) {
    *blocks = 0;
    return CUDA_SUCCESS;
  }
  const std::size_t by_shared =
      kSharedOfMultiprocessor / (shared_bytes + kSharedOfSystem);
  *blocks = static_cast<int>(std::min<std::size_t>(
      {kBlocksOfMultiprocessor, kThreadsOfMultiprocessor / wanted, by_shared}));
  return CUDA_SUCCESS;
}
