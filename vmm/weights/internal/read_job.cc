#include "vmm/weights/internal/read_job.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/staging.h"

namespace vmm {
namespace {

using weights::kPiece;
using weights::ReadJob;
using weights::ReadPart;

// Rows whose parts are so short are read together with what is between them.
constexpr std::uint64_t kShortPart = std::uint64_t{16} << 10;
// What is read at once is still in a core's own cache when its checksum is taken by
// that; else larger reads are faster (measured: 7.3 GB a second of 4 MiB, and 5.8).
constexpr std::uint64_t kCachedRead = std::uint64_t{128} << 10;

// Whether several rows come by one read, with the gaps between them.
bool IsShort(const ReadJob& job) {
  return job.rows() > 1 && job.row_bytes / job.parts.size() < kShortPart &&
         job.pitch <= kPiece;
}

// Moves the parts of `rows` rows, which came with gaps, together.
void CloseUp(std::uint8_t* bytes, const ReadJob& job, std::uint64_t rows) {
  std::uint8_t* to = bytes;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (const ReadPart& part : job.parts) {
      std::memmove(to,
                   bytes + row * job.pitch + part.offset - job.parts[0].offset,
                   static_cast<std::size_t>(part.bytes));
      to += part.bytes;
    }
  }
}

}  // namespace

absl::Status TensorSetWriter::JobReader::ReadAll() {
  std::uint8_t* const on_host = writer_.memory_->on_host();
  const bool is_short = IsShort(job_);
  const bool is_staged = on_host == nullptr || is_short;
  for (std::uint64_t done = 0, size = 0; done < job_.bytes; done += size) {
    if (stop_ != nullptr && *stop_) return absl::CancelledError("stopped");
    std::uint8_t* bytes = is_staged ? nullptr : on_host + job_.to + done;
    if (is_staged) {
      ASSIGN_OR_RETURN(const absl::Span<std::uint8_t> piece, stage_.Next());
      bytes = piece.data();
    }
    ASSIGN_OR_RETURN(
        size, is_short ? ReadRows(bytes) : ReadParts(bytes, job_.bytes - done));
    if (is_staged) {
      RETURN_IF_ERROR(
          writer_.memory_->WriteStaged(job_.to + done, stage_, size));
    }
    if (told_ != nullptr) *told_ += size;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> TensorSetWriter::JobReader::ReadRows(
    std::uint8_t* bytes) {
  const std::uint64_t rows = std::min(job_.rows() - row_, kPiece / job_.pitch);
  const ReadPart& first = job_.parts.front();
  const ReadPart& last = job_.parts.back();
  const std::uint64_t span =
      (rows - 1) * job_.pitch + last.offset + last.bytes - first.offset;
  const std::uint64_t size = rows * job_.row_bytes;
  RETURN_IF_ERROR(Read(first.offset + row_ * job_.pitch,
                       {bytes, static_cast<std::size_t>(span)}));
  CloseUp(bytes, job_, rows);
  Count({bytes, static_cast<std::size_t>(size)});
  row_ += rows;
  return size;
}

absl::StatusOr<std::uint64_t> TensorSetWriter::JobReader::ReadParts(
    std::uint8_t* bytes, std::uint64_t left) {
  const std::uint64_t size = std::min(left, kPiece);
  const std::uint64_t most =
      checksum_ == Checksum::kOnTheWay ? kCachedRead : kPiece;
  for (std::uint64_t done = 0; done < size;) {
    const ReadPart& part = job_.parts[part_];
    const absl::Span<std::uint8_t> next(
        bytes + done, static_cast<std::size_t>(
                          std::min({part.bytes - within_, size - done, most})));
    RETURN_IF_ERROR(Read(part.offset + row_ * job_.pitch + within_, next));
    Count(next);
    done += next.size();
    within_ += next.size();
    if (within_ < part.bytes) continue;
    within_ = 0;
    part_ = (part_ + 1) % job_.parts.size();
    if (part_ == 0) ++row_;
  }
  return size;
}

absl::Status TensorSetWriter::JobReader::Read(std::uint64_t offset,
                                              absl::Span<std::uint8_t> bytes) {
  ASSIGN_OR_RETURN(const std::size_t came, file_.Read(offset, bytes));
  if (came == bytes.size()) return absl::OkStatus();
  // Of several tensors, that in which it ends.
  if (job_.tensors.size() > 1) Count(bytes.first(came));
  const TensorInfo& info = writer_.manifest_.tensors[job_.tensors[tensor_]];
  return absl::DataLossError(absl::StrCat(
      "the file ", path_, " ends within tensor \"", weights::Shown(info.name),
      "\" of ", info.extent(), " bytes, at ", offset + came, ": it is cut"));
}

void TensorSetWriter::JobReader::Count(absl::Span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const std::size_t tensor = job_.tensors[tensor_];
    const std::uint64_t left =
        writer_.manifest_.tensors[tensor].extent() - counted_;
    const absl::Span<const std::uint8_t> here = bytes.subspan(
        0,
        static_cast<std::size_t>(std::min<std::uint64_t>(left, bytes.size())));
    if (checksum_ == Checksum::kOnTheWay) {
      writer_.Count(tensor, counted_, here);
    }
    counted_ += here.size();
    bytes.remove_prefix(here.size());
    if (here.size() < left || tensor_ + 1 == job_.tensors.size()) continue;
    ++tensor_;
    counted_ = 0;
  }
}

}  // namespace vmm
