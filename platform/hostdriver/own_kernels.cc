// What the kernels that vmmshare launches itself do on a GPU. Names and arguments
// are those of vmm/sync/internal/fence_kernels.cc and
// vmm/weights/internal/{piece_kernel,copy_kernel,checksum_text}.cc.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/crc32c.h"
#include "platform/hostdriver/kernels.h"
#include "platform/hostdriver/pieces.h"
#include "platform/hostdriver/stream_words.h"

namespace vmm::hostdriver {
namespace {

// An address of 0 is left out.
struct Step {
  std::uint64_t signal_at;
  std::uint64_t signal_value;
  std::uint64_t wait_at;
  std::uint64_t wait_value;
};

constexpr std::size_t kSteps = 127;
struct Steps {
  Step steps[kSteps];
};

constexpr std::size_t kPieces = 1168;
struct Pieces {
  std::uint64_t to[kPieces];
  std::uint64_t from[kPieces];
  std::uint64_t bytes[kPieces];
  std::uint32_t end[kPieces];  // In tiles, which are of no account here.
  std::uint32_t count;
};
constexpr std::size_t kPiecesBytes = kPieces * 28 + 4;

constexpr std::size_t kChecksumTile = 16384;

template <typename T>
T Read(const void* argument, std::size_t bytes = sizeof(T)) {
  T value{};
  std::memcpy(&value, argument, bytes);
  return value;
}

// All signal before one waits, as the threads of a block may.
Work Meet(const std::shared_ptr<Stream>& stream, std::vector<Step> steps) {
  return [steps = std::move(steps), context = stream->context](State& state,
                                                               Lock& held) {
    for (const Step& step : steps) {
      if (step.signal_at != 0 &&
          !StoreWord(state, context->device, step.signal_at,
                     step.signal_value)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    for (const Step& step : steps) {
      if (step.wait_at != 0 &&
          !AwaitWord(state, held, *context, step.wait_at, step.wait_value,
                     CU_STREAM_WAIT_VALUE_GEQ)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    return CUDA_SUCCESS;
  };
}

Work MeetOne(const std::shared_ptr<Stream>& stream, void* const* arguments) {
  return Meet(
      stream,
      {{Read<std::uint64_t>(arguments[0]), Read<std::uint64_t>(arguments[1]),
        Read<std::uint64_t>(arguments[2]), Read<std::uint64_t>(arguments[3])}});
}

Work MeetMany(const std::shared_ptr<Stream>& stream, void* const* arguments) {
  const auto steps = Read<Steps>(arguments[0]);
  const auto count =
      std::min<std::size_t>(Read<std::uint32_t>(arguments[1]), kSteps);
  return Meet(stream, {steps.steps, steps.steps + count});
}

Work Add(const std::shared_ptr<Stream>& stream, void* const* arguments) {
  return [at = Read<std::uint64_t>(arguments[0]),
          value = Read<std::uint64_t>(arguments[1]),
          device = stream->context->device](State& state, Lock&) {
    return at == 0 || AddToWord(state, device, at, value)
               ? CUDA_SUCCESS
               : CUDA_ERROR_ILLEGAL_ADDRESS;
  };
}

// What is read from `from` and written to `to`, as the work finds it. False where the
// device may not go.
bool FindBoth(State& state, int device, CUdeviceptr from, std::size_t read,
              CUdeviceptr to, std::size_t written, std::vector<Piece>* of,
              std::vector<Piece>* into) {
  return Resolve(state, from, read, device, CU_MEM_ACCESS_FLAGS_PROT_READ,
                 When::kRunning, of) == CUDA_SUCCESS &&
         Resolve(state, to, written, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                 When::kRunning, into) == CUDA_SUCCESS;
}

Work CopyMany(const std::shared_ptr<Stream>& stream, void* const* arguments) {
  return [copies = Read<Pieces>(arguments[0], kPiecesBytes),
          device = stream->context->device](State& state, Lock& held) {
    for (std::uint32_t i = 0; i < copies.count; ++i) {
      const auto size = static_cast<std::size_t>(copies.bytes[i]);
      std::vector<Piece> from;
      std::vector<Piece> to;
      if (!FindBoth(state, device, copies.from[i], size, copies.to[i], size,
                    &from, &to)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      held.unlock();
      CopyPieces(std::move(to), std::move(from));
      held.lock();
    }
    return CUDA_SUCCESS;
  };
}

// A register for each tile of the pieces' bytes; what a tile lacks is taken to be 0.
std::vector<std::uint32_t> Registers(const std::vector<Piece>& pieces) {
  std::vector<std::uint32_t> registers;
  std::size_t left = 0;  // Of the last tile.
  for (const Piece& piece : pieces) {
    for (std::size_t at = 0, size = 0; at < piece.size; at += size) {
      if (left == 0) {
        registers.push_back(0);
        left = kChecksumTile;
      }
      size = std::min(left, piece.size - at);
      registers.back() = ExtendCrc32c(registers.back(), piece.data + at, size);
      left -= size;
    }
  }
  const std::vector<std::byte> zeros(left);
  if (left > 0) {
    registers.back() = ExtendCrc32c(registers.back(), zeros.data(), left);
  }
  return registers;
}

Work Crc32cMany(const std::shared_ptr<Stream>& stream, void* const* arguments) {
  return [ranges = Read<Pieces>(arguments[0], kPiecesBytes),
          device = stream->context->device](State& state, Lock& held) {
    for (std::uint32_t i = 0; i < ranges.count; ++i) {
      const std::size_t size = static_cast<std::size_t>(ranges.bytes[i]);
      const std::size_t tiles = (size + kChecksumTile - 1) / kChecksumTile;
      std::vector<Piece> from;
      std::vector<Piece> to;
      if (!FindBoth(state, device, ranges.from[i], size, ranges.to[i],
                    tiles * sizeof(std::uint32_t), &from, &to)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      held.unlock();
      const std::vector<std::uint32_t> registers = Registers(from);
      const auto* next = reinterpret_cast<const std::byte*>(registers.data());
      for (const Piece& piece : to) {
        std::memcpy(piece.data, next, piece.size);
        next += piece.size;
      }
      from.clear();
      to.clear();
      held.lock();
    }
    return CUDA_SUCCESS;
  };
}

}  // namespace

std::vector<Kernel> OwnKernels() {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  return {
      {"vmmshare_fence_meet", nullptr, {kWord, kWord, kWord, kWord}, &MeetOne},
      {"vmmshare_fences_meet",
       nullptr,
       {sizeof(Steps), sizeof(std::uint32_t)},
       &MeetMany},
      {"vmmshare_fence_add", nullptr, {kWord, kWord}, &Add},
      {"vmmshare_copy_many", nullptr, {kPiecesBytes}, &CopyMany},
      {"vmmshare_crc32c_many", nullptr, {kPiecesBytes}, &Crc32cMany}};
}

}  // namespace vmm::hostdriver
