// Legacy interprocess communication: cuMemAlloc, cuIpcGetMemHandle,
// cuIpcOpenMemHandle.
#include <cstring>

#include "bench/compare/route.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

using vmm::platform::OsHandle;

// cuMemAlloc puts buffers of less than 2 MiB side by side into one block of
// its own, and opening a second one of them costs nearly nothing. `kUnit` is
// what sizes are rounded up to: 2 MiB gives each buffer a block of its own.
template <std::uint64_t kUnit>
class LegacyOwner : public Owner {
 public:
  explicit LegacyOwner(Gpu& gpu) : gpu_(gpu) {}

  absl::StatusOr<Block> Create(std::uint64_t size,
                               CUstream /*stream*/) override {
    Block block{0, size, 0};
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemAlloc, &block.address,
                              (size + kUnit - 1) / kUnit * kUnit));
    return block;
  }

  absl::Status Free(const Block& block, CUstream /*stream*/) override {
    return gpu_.Call(&Cu::cuMemFree, block.address);
  }

  absl::StatusOr<std::size_t> Export(const Block& block, BlobSpan blob,
                                     OsHandle* /*handle*/) override {
    CUipcMemHandle exported;
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuIpcGetMemHandle, &exported, block.address));
    std::memcpy(blob.data(), &exported, sizeof(exported));
    return sizeof(exported);
  }

 private:
  Gpu& gpu_;
};

class LegacyImporter : public Importer {
 public:
  explicit LegacyImporter(Gpu& gpu) : gpu_(gpu) {}

  absl::StatusOr<Block> Import(std::uint64_t size,
                               absl::Span<const std::uint8_t> blob,
                               OsHandle /*handle*/, Steps* steps) override {
    CUipcMemHandle exported;
    vmm::platform::Check(blob.size() == sizeof(exported),
                         "a blob of another route");
    std::memcpy(&exported, blob.data(), sizeof(exported));
    Block block{0, size, 0};
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuIpcOpenMemHandle, &block.address, exported,
                       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }));
    return block;
  }

  absl::Status Close(const Block& block) override {
    return gpu_.Call(&Cu::cuIpcCloseMemHandle, block.address);
  }

 private:
  Gpu& gpu_;
};

template <std::uint64_t kUnit>
absl::StatusOr<std::unique_ptr<Owner>> Own(Gpu& gpu) {
  RETURN_IF_ERROR(gpu.NeedLegacyIpc());
  return std::make_unique<LegacyOwner<kUnit>>(gpu);
}

absl::StatusOr<std::unique_ptr<Importer>> MakeImporter(Gpu& gpu) {
  RETURN_IF_ERROR(gpu.NeedLegacyIpc());
  return std::make_unique<LegacyImporter>(gpu);
}

}  // namespace

const Route routes::kLegacyIpc = {"legacy", "legacy IPC, a handle each", false,
                                  &Own<1>, &MakeImporter};
const Route routes::kLegacyIpcOwnBlock = {"legacy-2MiB",
                                          "legacy IPC, own 2 MiB each", false,
                                          &Own<(2 << 20)>, &MakeImporter};

}  // namespace bench::compare
