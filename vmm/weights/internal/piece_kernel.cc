#include "vmm/weights/internal/piece_kernel.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"

namespace vmm::weights {
namespace {

constexpr unsigned int kThreads = 1024;
constexpr unsigned int kBlocksOfMultiprocessor = 2;
constexpr std::size_t kMost = PieceKernel::kMost;

struct Table {
  std::uint64_t to[kMost];
  std::uint64_t from[kMost];
  std::uint64_t bytes[kMost];
  std::uint32_t end[kMost];  // Tiles up to and with this piece's.
  std::uint32_t count;
};
// The kernels have these numbers.
static_assert(offsetof(Table, from) == 9344);
static_assert(offsetof(Table, bytes) == 18688);
static_assert(offsetof(Table, end) == 28032);
static_assert(offsetof(Table, count) == 32704);

}  // namespace

absl::StatusOr<PieceKernel> PieceKernel::Load(const Device& device,
                                              const char* ptx,
                                              const char* name) {
  ASSIGN_OR_RETURN(KernelLibrary library, KernelLibrary::Of(device, ptx));
  ASSIGN_OR_RETURN(const CUfunction kernel, library.Find(name));
  ASSIGN_OR_RETURN(
      const int multiprocessors,
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                      "MULTIPROCESSOR_COUNT"));
  const auto blocks = static_cast<unsigned int>(std::max(multiprocessors, 1)) *
                      kBlocksOfMultiprocessor;
  return PieceKernel(std::move(library), kernel, blocks);
}

absl::Status PieceKernel::Run(CUstream stream,
                              absl::Span<const DevicePiece> pieces) const {
  const auto table = std::make_unique<Table>();
  do {
    const std::size_t count = std::min(pieces.size(), kMost);
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < count; ++i) {
      table->to[i] = pieces[i].to;
      table->from[i] = pieces[i].from;
      table->bytes[i] = pieces[i].bytes;
      end += (pieces[i].bytes + kTile - 1) / kTile;
      table->end[i] = static_cast<std::uint32_t>(end);
    }
    table->count = static_cast<std::uint32_t>(count);
    void* arguments[] = {table.get()};
    RETURN_IF_ERROR(
        library_.Launch(kernel_, blocks_, kThreads, stream, arguments));
    pieces.remove_prefix(count);
  } while (!pieces.empty());
  return absl::OkStatus();
}

}  // namespace vmm::weights
