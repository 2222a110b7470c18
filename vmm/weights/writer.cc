#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {
namespace {

using weights::kPiece;
using weights::kTrailerBytes;
using weights::MemoryCopy;

// A handle of each chunk, to be kept open: while there is one the next takes the
// driver 0.03 ms, and else 0.6 (measured on H200), which would be within the step
// that readers wait for. None where the memory cannot be shared: whoever publishes
// it is told. Nor where there is none for every chunk: readers would wait all the
// same, and what is short is needed by files and connections.
std::vector<ExportedHandle> HandlesOf(const MemoryCopy& memory) {
  const absl::StatusOr<CurrentContext> current = memory.Enter();
  if (!current.ok()) return {};
  const absl::StatusOr<AdoptedMemory> adopted =
      AdoptedMemory::Adopt(memory.driver(), memory.address(), memory.size());
  if (!adopted.ok()) return {};
  const absl::StatusOr<HandleKind> kind = PreferredKind(adopted->shareable());
  if (!kind.ok()) return {};
  std::vector<ExportedHandle> handles;
  const std::size_t count = adopted->shareable().layout().count();
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    absl::StatusOr<ExportedHandle> handle =
        ExportChunk(adopted->shareable(), *kind, chunk);
    if (!handle.ok()) return {};
    handles.push_back(*std::move(handle));
  }
  return handles;
}

}  // namespace

absl::StatusOr<TensorSetWriter> TensorSetWriter::Begin(
    const platform::Driver& driver, CUdeviceptr address, std::uint64_t size,
    const TensorLayout& layout) {
  RETURN_IF_ERROR(CheckManifest(layout.manifest()));
  if (size < layout.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor set of ", layout.size(), " bytes in ", size,
                     " of memory: allocate TensorLayout::size()"));
  }
  ASSIGN_OR_RETURN(MemoryCopy memory,
                   MemoryCopy::Open(driver, address, size, Access::kReadWrite));
  TensorSetWriter writer(layout.manifest(),
                         std::make_unique<MemoryCopy>(std::move(memory)));
  const std::vector<std::uint8_t> nothing(kTrailerBytes);
  writer.end_may_be_copying_ = true;
  RETURN_IF_ERROR(writer.memory_->Write(size - kTrailerBytes, nothing));
  RETURN_IF_ERROR(writer.memory_->Finish());
  writer.end_may_be_copying_ = false;
  writer.handles_ = HandlesOf(*writer.memory_);
  return writer;
}

TensorSetWriter::TensorSetWriter(TensorManifest manifest,
                                 std::unique_ptr<MemoryCopy> memory)
    : manifest_(std::move(manifest)), memory_(std::move(memory)) {
  progress_.reserve(manifest_.tensors.size());
  for (const TensorInfo& info : manifest_.tensors) {
    progress_.push_back({.offset = info.offset,
                         .extent = info.extent(),
                         .is_alias = info.alias_of.has_value()});
  }
}
TensorSetWriter::~TensorSetWriter() { FinishCopies(); }
TensorSetWriter::TensorSetWriter(TensorSetWriter&&) noexcept = default;
TensorSetWriter& TensorSetWriter::operator=(TensorSetWriter&& other) noexcept {
  if (this != &other) {
    FinishCopies();
    manifest_ = std::move(other.manifest_);
    handles_ = std::move(other.handles_);
    memory_ = std::move(other.memory_);
    progress_ = std::move(other.progress_);
    is_sealed_ = other.is_sealed_;
    end_may_be_copying_ = other.end_may_be_copying_;
  }
  return *this;
}

void TensorSetWriter::FinishCopies() {
  // Whoever gives up frees the memory next: a copy that is still under way there
  // would end the context.
  if (memory_ == nullptr) return;
  if (end_may_be_copying_ ||
      std::any_of(progress_.begin(), progress_.end(),
                  [](const Progress& one) { return one.may_be_copying; })) {
    memory_->Finish().IgnoreError();
  }
}

CUdeviceptr TensorSetWriter::address(std::size_t tensor) const {
  platform::Check(tensor < manifest_.tensors.size(),
                  "the manifest has no such tensor");
  return memory_->address() + manifest_.tensors[tensor].offset;
}

std::uint64_t TensorSetWriter::memory_size() const { return memory_->size(); }

const platform::Driver& TensorSetWriter::driver() const {
  return memory_->driver();
}

absl::Status TensorSetWriter::CheckIsOwn(std::size_t tensor) const {
  if (tensor >= manifest_.tensors.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", tensor, " of ", manifest_.tensors.size()));
  }
  if (progress_[tensor].is_alias) {
    const TensorInfo& info = manifest_.tensors[tensor];
    return weights::OfTensor(
        info.name,
        absl::StrCat("is an alias: write \"",
                     weights::Shown(manifest_.tensors[*info.alias_of].name),
                     "\""));
  }
  return absl::OkStatus();
}

absl::Status TensorSetWriter::CheckMayWrite(std::size_t tensor,
                                            std::uint64_t offset,
                                            std::uint64_t size) const {
  if (is_sealed_) {
    return absl::FailedPreconditionError(
        "the tensor set is sealed: nobody is to write to it any more");
  }
  RETURN_IF_ERROR(CheckIsOwn(tensor));
  const TensorInfo& info = manifest_.tensors[tensor];
  const std::uint64_t extent = info.extent();
  if (offset > extent || size > extent - offset) {
    return absl::OutOfRangeError(
        absl::StrCat(size, " bytes at ", offset, " of tensor \"",
                     weights::Shown(info.name), "\", which has ", extent));
  }
  return absl::OkStatus();
}

void TensorSetWriter::Count(std::size_t tensor, std::uint64_t offset,
                            absl::Span<const std::uint8_t> bytes) {
  Progress& progress = progress_[tensor];
  // Written over: what is known of it is of what it was.
  progress.in_order &= offset == progress.next;
  if (!progress.in_order) return;
  progress.crc = ExtendCrc32c(progress.crc, bytes);
  progress.next += bytes.size();
}

absl::Status TensorSetWriter::Write(std::size_t tensor, std::uint64_t offset,
                                    absl::Span<const std::uint8_t> bytes) {
  RETURN_IF_ERROR(CheckMayWrite(tensor, offset, bytes.size()));
  const std::uint64_t begin = manifest_.tensors[tensor].offset + offset;
  progress_[tensor].may_be_copying = true;
  // By pieces, so that each is in a cache while its checksum is taken.
  for (std::uint64_t done = 0; done < bytes.size(); done += kPiece) {
    const absl::Span<const std::uint8_t> piece =
        bytes.subspan(static_cast<std::size_t>(done), kPiece);
    RETURN_IF_ERROR(memory_->Write(begin + done, piece));
    Count(tensor, offset + done, piece);
  }
  return absl::OkStatus();
}

absl::Status TensorSetWriter::CopyFrom(std::size_t tensor, CUdeviceptr from) {
  RETURN_IF_ERROR(CheckMayWrite(tensor, 0, 0));
  const TensorInfo& info = manifest_.tensors[tensor];
  progress_[tensor].in_order = false;
  progress_[tensor].may_be_copying = true;
  return memory_->WriteFrom(info.offset, from, info.extent());
}

absl::Status TensorSetWriter::CopyAll(absl::Span<const Source> sources,
                                      CUstream stream, From from) {
  if (stream == CU_STREAM_LEGACY) stream = nullptr;  // Another name of it.
  std::vector<weights::DevicePiece> copies;
  copies.reserve(sources.size());
  for (const Source& source : sources) {
    RETURN_IF_ERROR(CheckIsOwn(source.tensor));
    const Progress& to = progress_[source.tensor];
    if (to.extent == 0) continue;
    copies.push_back({memory_->address() + to.offset, source.from, to.extent});
  }
  for (const Source& source : sources) {
    Progress& to = progress_[source.tensor];
    to.in_order = false;
    // Also where it fails: some may be under way.
    to.may_be_copying |= !is_sealed_ || stream == nullptr;
  }
  return memory_->WriteAllFrom(copies, stream, from == From::kDevice);
}

}  // namespace vmm
