// Legacy interprocess communication as a careful user writes it: buffers lie in
// few allocations, each opened once by the importer, and offsets travel.
//
// Nothing else does: no record of who uses a buffer, no answer to a stale
// offset, and the importer reaches all of every allocation.
#include <array>
#include <cstring>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "bench/compare/route.h"
#include "platform/base/check.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// What a kind of arena takes from the driver for a buffer of `size`.
using PieceSize = std::uint64_t (*)(std::uint64_t size);

constexpr std::uint64_t kMiB = 1 << 20;

std::uint64_t RoundUp(std::uint64_t size, std::uint64_t to) {
  return (size + to - 1) / to * to;
}

// Pieces of 1 GiB, or of the buffer where that is larger.
std::uint64_t ArenaPiece(std::uint64_t size) {
  return RoundUp(size, 1024 * kMiB);
}

// As PyTorch's caching allocator has them.
std::uint64_t CachedPiece(std::uint64_t size) {
  if (size <= kMiB) return 2 * kMiB;
  return size < 10 * kMiB ? 20 * kMiB : RoundUp(size, 2 * kMiB);
}

// What travels for a buffer. The handle follows where `has_handle`.
struct Place {
  std::uint64_t offset = 0;
  std::uint32_t piece = 0;
  std::uint32_t has_handle = 0;
};

struct Piece {
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
  std::uint64_t used = 0;  // Offset of what is still free.
  std::uint64_t live = 0;  // Buffers; without any, it is free as a whole.
  bool introduced = false;
};

// `kEachTime`: the handle is asked for and sent with every buffer, as PyTorch
// does; else with the first one of its piece.
template <PieceSize kPiece, bool kEachTime>
class ArenaOwner : public Owner {
 public:
  using Owner::Owner;
  ~ArenaOwner() override {
    for (const Piece& piece : pieces_) {
      vmm::platform::ReportReleaseFailure(
          gpu_.Call(&Cu::cuMemFree, piece.base));
    }
  }

  absl::StatusOr<Block> Create(std::uint64_t size,
                               CUstream /*stream*/) override {
    const vmm::platform::MutexLock lock(mutex_);
    const std::uint64_t rounded = RoundUp(size, 512);
    const std::uint64_t piece_size = kPiece(rounded);
    const auto found = open_.find(piece_size);
    std::size_t at = found == open_.end() ? pieces_.size() : found->second;
    if (at == pieces_.size() || pieces_[at].used + rounded > piece_size) {
      ASSIGN_OR_RETURN(std::size_t next, Next(piece_size));
      at = open_[piece_size] = next;
    }
    Piece& piece = pieces_[at];
    const Block block{piece.base + piece.used, size, at};
    piece.used += rounded;
    ++piece.live;
    return block;
  }

  absl::Status Free(const Block& block, CUstream /*stream*/) override {
    const vmm::platform::MutexLock lock(mutex_);
    Piece& piece = pieces_[block.own];
    if (--piece.live == 0) piece.used = 0;
    return absl::OkStatus();
  }

  absl::Status Export(const Block& block, Outgoing* out) override {
    Piece& piece = pieces_[block.own];
    const Place place{block.address - piece.base,
                      static_cast<std::uint32_t>(block.own),
                      kEachTime || !piece.introduced ? 1U : 0U};
    out->Put(place);
    if (place.has_handle == 0) return absl::OkStatus();
    CUipcMemHandle handle;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuIpcGetMemHandle, &handle, piece.base));
    piece.introduced = true;
    std::memcpy(out->blob.data() + sizeof(place), &handle, sizeof(handle));
    out->length += sizeof(handle);
    return absl::OkStatus();
  }

 private:
  // A piece without buffers: one that has lost all of its, or a new one.
  absl::StatusOr<std::size_t> Next(std::uint64_t size) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].live == 0 && pieces_[i].size == size) return i;
    }
    Piece piece;
    piece.size = size;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemAlloc, &piece.base, size));
    pieces_.push_back(piece);
    return pieces_.size() - 1;
  }

  vmm::platform::Mutex mutex_;
  std::vector<Piece> pieces_;
  std::map<std::uint64_t, std::size_t> open_;  // By size.
};

// Opens each handle once, whichever way it is sent, and keeps it open.
template <bool kEachTime>
class ArenaImporter : public Importer {
 public:
  using Importer::Importer;
  ~ArenaImporter() override {
    for (const CUdeviceptr base : opened_) {
      vmm::platform::ReportReleaseFailure(
          gpu_.Call(&Cu::cuIpcCloseMemHandle, base));
    }
  }

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    absl::StatusOr<CUdeviceptr> address =
        Timed(steps, Step::kImport, [&] { return Find(in.blob); });
    if (!address.ok()) return address.status();
    return Block{*address, in.size, 0};
  }

  absl::Status Close(const Block& /*block*/) override {
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<CUdeviceptr> Find(absl::Span<const std::uint8_t> blob) {
    Place place;
    vmm::platform::Check(blob.size() >= sizeof(place),
                         "a blob of another route");
    std::memcpy(&place, blob.data(), sizeof(place));
    if (place.has_handle == 0) {
      if (place.piece >= by_piece_.size() || by_piece_[place.piece] == 0) {
        return absl::NotFoundError("an offset into a piece that never came");
      }
      return by_piece_[place.piece] + place.offset;
    }
    CUipcMemHandle handle;
    vmm::platform::Check(blob.size() == sizeof(place) + sizeof(handle),
                         "a blob of another route");
    std::memcpy(&handle, blob.data() + sizeof(place), sizeof(handle));
    if (kEachTime) {
      const auto found = by_handle_.find(
          {reinterpret_cast<const char*>(&handle), sizeof(handle)});
      if (found != by_handle_.end()) return found->second + place.offset;
    }
    CUdeviceptr base = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuIpcOpenMemHandle, &base, handle,
                              CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    opened_.push_back(base);
    if (kEachTime) {
      by_handle_.emplace(
          std::string(reinterpret_cast<const char*>(&handle), sizeof(handle)),
          base);
    } else {
      if (by_piece_.size() <= place.piece) by_piece_.resize(place.piece + 1);
      by_piece_[place.piece] = base;
    }
    return base + place.offset;
  }

  std::vector<CUdeviceptr> opened_;
  std::vector<CUdeviceptr> by_piece_;
  std::unordered_map<std::string, CUdeviceptr> by_handle_;
};

}  // namespace

const Route routes::kLegacyIpcArena = {
    "legacy-arena", "legacy IPC, arena", false,
    kMakeLegacy<ArenaOwner<&ArenaPiece, false>>,
    kMakeLegacy<ArenaImporter<false>>};
const Route routes::kLegacyIpcCached = {
    "legacy-cached", "legacy IPC, handles cached", false,
    kMakeLegacy<ArenaOwner<&CachedPiece, true>>,
    kMakeLegacy<ArenaImporter<true>>};

}  // namespace bench::compare
