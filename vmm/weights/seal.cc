// How a set that was written is completed, and whether it is where it is to be.
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {
namespace {

// Whether `chunk` of `memory` is mapped at `address`.
absl::StatusOr<bool> IsChunkAt(CUdeviceptr address, const Shareable& memory,
                               std::size_t chunk,
                               const platform::Driver& driver) {
  // A writer has cuMemCreate()'s memory alone.
  if (memory.memory() == nullptr) return false;
  ASSIGN_OR_RETURN(const OwnedMemoryHandle there,
                   RetainMemoryAt(driver, address));
  return there.has_value() &&
         there.get().handle == memory.memory()->handle(chunk);
}

}  // namespace

absl::Status TensorSetWriter::CheckWritesTo(const Shareable& memory) const {
  if (memory.requested_size() != memory_->size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the writer has ", memory_->size(),
        " bytes of memory, and what is shared has ", memory.requested_size(),
        ": readers would not find its end"));
  }
  // An address is mapped anew, and memory may be mapped at several: what tells
  // memory from other memory is the driver's handle of each chunk.
  const RelaxedCapture relaxed(driver());
  const ChunkLayout layout = memory.layout();
  for (std::size_t chunk = 0; chunk < layout.count(); ++chunk) {
    ASSIGN_OR_RETURN(const bool is_own,
                     IsChunkAt(memory_->address() + chunk * layout.chunk_size,
                               memory, chunk, driver()));
    if (is_own) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the writer writes to other memory, at 0x",
        absl::Hex(memory_->address()), ", than the ", memory.requested_size(),
        " bytes on ", memory.where().Describe(),
        " that are to be shared: readers would find no set there, or an old "
        "one. Give the one that it was made with."));
  }
  // Nothing is mapped before it, or something else.
  const absl::StatusOr<bool> is_within =
      IsChunkAt(memory_->address() - 1, memory, 0, driver());
  if (is_within.value_or(false)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the writer writes to 0x", absl::Hex(memory_->address()),
        ", which is not the beginning of the memory that is to be shared: "
        "readers would not find the set. Make a writer at its beginning."));
  }
  return absl::OkStatus();
}

absl::Status TensorSetWriter::TakeChecksumsOf(
    absl::Span<const std::size_t> tensors) {
  std::vector<weights::MemoryCopy::Part> parts;
  parts.reserve(tensors.size());
  for (const std::size_t tensor : tensors) {
    parts.push_back({progress_[tensor].offset, progress_[tensor].extent});
  }
  ASSIGN_OR_RETURN(const std::vector<std::uint32_t> checksums,
                   memory_->Checksums(parts));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Progress& progress = progress_[tensors[i]];
    progress.next = progress.extent;
    progress.crc = checksums[i];
    progress.in_order = true;
  }
  return absl::OkStatus();
}

absl::Status TensorSetWriter::TakeChecksums() {
  if (is_sealed_) {
    return absl::FailedPreconditionError("the tensor set is sealed already");
  }
  RETURN_IF_ERROR(memory_->Finish());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const Progress& progress = progress_[i];
    if (progress.is_alias) continue;
    if (!progress.is_complete() || progress.was_taken) missing.push_back(i);
  }
  RETURN_IF_ERROR(TakeChecksumsOf(missing));
  for (const std::size_t i : missing) progress_[i].was_taken = true;
  return absl::OkStatus();
}

void TensorSetWriter::Reopen() {
  is_sealed_ = false;
  for (Progress& progress : progress_) {
    if (progress.was_taken) progress.in_order = false;
    progress.was_taken = false;
  }
}

absl::Status TensorSetWriter::Seal(const SealOptions& options) {
  if (is_sealed_) {
    return absl::FailedPreconditionError("the tensor set is sealed already");
  }
  if (options.generation == 0) {
    return absl::InvalidArgumentError("generation 0; they count from 1");
  }
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const Progress& progress = progress_[i];
    if (progress.is_alias) continue;
    std::optional<std::uint32_t>& checksum = manifest_.tensors[i].checksum;
    checksum.reset();  // Of a try before.
    if (progress.is_complete()) checksum = progress.crc;
  }
  manifest_.generation = options.generation;
  const std::vector<std::uint8_t> bytes = EncodeManifest(manifest_);
  const std::uint64_t offset = weights::AlignUp(manifest_.data_bytes);
  end_may_be_copying_ = true;
  RETURN_IF_ERROR(memory_->Write(offset, bytes));
  // All else is there before the bytes that say so.
  RETURN_IF_ERROR(memory_->Finish());
  RETURN_IF_ERROR(
      memory_->Write(memory_->size() - weights::kTrailerBytes,
                     weights::EncodeTrailer({.manifest_offset = offset,
                                             .manifest_bytes = bytes.size()})));
  RETURN_IF_ERROR(memory_->Finish());
  end_may_be_copying_ = false;
  for (Progress& progress : progress_) progress.may_be_copying = false;
  is_sealed_ = true;
  return absl::OkStatus();
}

}  // namespace vmm
