// Legacy interprocess communication: cuMemAlloc, cuIpcGetMemHandle,
// cuIpcOpenMemHandle.

#include "bench/compare/route.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// cuMemAlloc puts buffers of less than 2 MiB side by side into one block of
// its own, and opening a second one of them costs nearly nothing. `kUnit` is
// what sizes are rounded up to: 2 MiB gives each buffer a block of its own.
template <std::uint64_t kUnit>
class LegacyOwner : public Owner {
 public:
  using Owner::Owner;

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

  absl::Status Export(const Block& block, Outgoing* out) override {
    CUipcMemHandle exported;
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuIpcGetMemHandle, &exported, block.address));
    out->Put(exported);
    return absl::OkStatus();
  }
};

class LegacyImporter : public Importer {
 public:
  using Importer::Importer;

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    const auto exported = in.Get<CUipcMemHandle>();
    Block block{0, in.size, 0};
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuIpcOpenMemHandle, &block.address, exported,
                       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }));
    return block;
  }

  absl::Status Close(const Block& block) override {
    return gpu_.Call(&Cu::cuIpcCloseMemHandle, block.address);
  }
};

}  // namespace

const Route routes::kLegacyIpc = {"legacy", "legacy IPC, a handle each", false,
                                  kMakeLegacy<LegacyOwner<1>>,
                                  kMakeLegacy<LegacyImporter>};
const Route routes::kLegacyIpcOwnBlock = {
    "legacy-2MiB", "legacy IPC, own 2 MiB each", false,
    kMakeLegacy<LegacyOwner<(2 << 20)>>, kMakeLegacy<LegacyImporter>};

}  // namespace bench::compare
