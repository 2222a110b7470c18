// SymmetricHeap: see symmetric.h.
#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/job/internal/heap_record.h"
#include "vmm/job/symmetric.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::job {
namespace {

using pool::OffsetHeap;

static_assert(SymmetricHeap::kGranule == OffsetHeap::kGranule);
static_assert(SymmetricHeap::kMaxSize == OffsetHeap::kMaxSize);

enum Call : std::uint8_t { kAllocate = 1, kFree = 2 };

// Ranks that a message names; a job may have thousands.
constexpr std::size_t kMostNamed = 8;

std::uint64_t RoundUp(std::uint64_t size) {
  platform::Check(size > 0 && size <= OffsetHeap::kMaxSize,
                  "a heap of symmetric memory has 1 byte to just below 1 TiB");
  return (size + OffsetHeap::kGranule - 1) / OffsetHeap::kGranule *
         OffsetHeap::kGranule;
}

std::string Told(std::size_t rank, const HeapRecord& record) {
  return absl::StrCat("rank ", rank, " made ", record.calls, " calls and has ",
                      record.free_bytes, " bytes free (checksum 0x",
                      absl::Hex(record.checksum, absl::kZeroPad8), ")");
}

}  // namespace

struct SymmetricHeap::State {
  explicit State(std::uint64_t size) : end(size), heap(RoundUp(size)) {}

  // A block at a multiple of `alignment` that ends by `end`. The last granule
  // may have fewer bytes: who asks for more of it gets another block, or none.
  std::optional<OffsetHeap::Block> Allocate(std::uint64_t size,
                                            std::uint64_t alignment) {
    if (size > end) return std::nullopt;
    std::optional<OffsetHeap::Block> block = heap.Allocate(size, alignment);
    if (block.has_value() && block->offset > end - size) {
      // As long as it is taken no other can end there.
      const OffsetHeap::Block last = *block;
      block = heap.Allocate(size, alignment);
      heap.Free(last.node);
    }
    return block;
  }

  const std::uint64_t end;  // Bytes that the memory has.
  OffsetHeap heap;
  std::unordered_map<std::uint64_t, std::uint32_t> nodes;  // By offset.
  std::uint64_t calls = 0;
  std::uint32_t checksum = 0;
};

SymmetricHeap::SymmetricHeap(std::uint64_t size)
    : state_(std::make_unique<State>(size)) {}
SymmetricHeap::~SymmetricHeap() = default;
SymmetricHeap::SymmetricHeap(SymmetricHeap&&) noexcept = default;
SymmetricHeap& SymmetricHeap::operator=(SymmetricHeap&&) noexcept = default;

std::uint64_t SymmetricHeap::size() const { return state_->heap.size(); }
std::uint64_t SymmetricHeap::free_bytes() const {
  return state_->heap.free_bytes();
}
std::uint64_t SymmetricHeap::live() const { return state_->heap.live_blocks(); }

// Also calls that fail: they fail alike.
void SymmetricHeap::Note(std::uint8_t call, std::uint64_t first,
                         std::uint64_t second) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.Put<std::uint8_t>(call);
  out.Put<std::uint64_t>(first);
  out.Put<std::uint64_t>(second);
  state_->checksum = ExtendCrc32c(state_->checksum, bytes);
  ++state_->calls;
}

absl::StatusOr<std::uint64_t> SymmetricHeap::Allocate(std::uint64_t size,
                                                      std::uint64_t alignment) {
  Note(kAllocate, size, alignment);
  if (size == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0 ||
      alignment > kMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Allocate(size=", size, ", alignment=", alignment,
        ") of symmetric memory. Give at least 1 byte and a power of two up to ",
        kMaxAlignment));
  }
  const std::optional<OffsetHeap::Block> block =
      state_->Allocate(size, std::max(alignment, kGranule));
  if (!block.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the heap of symmetric memory has no ", size, " bytes aligned to ",
        alignment, ": of ", this->size(), " bytes ", free_bytes(),
        " are free, the largest range has ", state_->heap.largest_free(),
        state_->end == this->size()
            ? ""
            : absl::StrCat(", and the memory ends at ", state_->end),
        ". Make the SymmetricMemory larger, or free buffers on every rank"));
  }
  state_->nodes.emplace(block->offset, block->node);
  return block->offset;
}

absl::Status SymmetricHeap::Free(std::uint64_t offset) {
  Note(kFree, offset, 0);
  const auto found = state_->nodes.find(offset);
  if (found == state_->nodes.end()) {
    return absl::NotFoundError(absl::StrCat(
        "no buffer of symmetric memory begins at ", offset,
        ": it was freed before, or never allocated. Free what Allocate() "
        "returned, once"));
  }
  state_->heap.Free(found->second);
  state_->nodes.erase(found);
  return absl::OkStatus();
}

absl::Status SymmetricHeap::CheckAgreed(fabric::Exchange& exchange,
                                        Deadline deadline) const {
  const HeapRecord own{state_->calls, state_->checksum, free_bytes()};
  const fabric::Gathered gathered =
      fabric::Gather(exchange, "heap", EncodeHeapRecord(own), deadline);
  RETURN_IF_ERROR(gathered.status);
  std::vector<HeapRecord> records;
  for (std::size_t rank = 0; rank < gathered.records.size(); ++rank) {
    absl::StatusOr<HeapRecord> record =
        DecodeHeapRecord(*gathered.records[rank]);
    if (!record.ok()) {
      return platform::Annotate(record.status(), absl::StrCat("rank ", rank));
    }
    records.push_back(*record);
  }
  std::string told;
  std::size_t others = 0;
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    if (records[rank] == records.front()) continue;
    if (++others > kMostNamed) continue;
    absl::StrAppend(&told, "; ", Told(rank, records[rank]));
  }
  if (others == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks' heaps of symmetric memory differ: ", Told(0, records.front()),
      told,
      others > kMostNamed
          ? absl::StrCat("; so do ", others - kMostNamed, " more")
          : "",
      ". Call Allocate() and Free() with the same values in the same order on "
      "every rank"));
}

}  // namespace vmm::job
