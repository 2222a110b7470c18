#include "vmm/weights/internal/read_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/staging.h"

namespace vmm::weights {
namespace {

using FileRead = TensorSetWriter::FileRead;

// Whether the parts are in order, in rows that do not lie in each other.
bool FitTheirPitch(absl::Span<const FileRead> reads) {
  const std::uint64_t begin = reads.front().rows.offset;
  std::uint64_t end = 0;  // From `begin` on.
  for (const FileRead& read : reads) {
    const TensorSetWriter::FileRows& rows = read.rows;
    if (read.file != reads.front().file ||
        rows.pitch != reads.front().rows.pitch || rows.offset < begin ||
        rows.offset - begin < end || rows.offset - begin > rows.pitch ||
        rows.row_bytes > rows.pitch - (rows.offset - begin)) {
      return false;
    }
    end = rows.offset - begin + rows.row_bytes;
  }
  return true;
}

// `reads` are of one tensor, which has bytes.
absl::StatusOr<ReadJob> JobOf(const TensorInfo& info,
                              absl::Span<const FileRead> reads) {
  const FileRead& first = reads.front();
  const std::uint64_t extent = info.extent();
  ReadJob job;
  job.file = first.file;
  job.to = info.offset;
  job.bytes = extent;
  job.tensors = {first.tensor};
  job.pitch = first.rows.pitch;
  if (FitTheirPitch(reads)) {
    for (const FileRead& read : reads) {
      if (read.rows.row_bytes == 0) continue;
      // Beyond it no file has bytes, and no sum of it and a pitch overflows.
      job.parts.push_back(
          {std::min(read.rows.offset, kMaxBytes), read.rows.row_bytes});
      job.row_bytes += read.rows.row_bytes;  // At most the pitch.
    }
  }
  if (job.row_bytes == 0 || extent % job.row_bytes != 0 ||
      job.pitch > kMaxBytes / job.rows()) {
    return OfTensor(
        info.name,
        absl::StrCat(
            "of ", extent, " bytes by rows of ",
            reads.size() == 1 ? first.rows.row_bytes : job.row_bytes,
            " bytes in ", reads.size(), " parts, ", first.rows.pitch,
            " from one to the next: expected rows that make it up, and that do "
            "not lie in each other"));
  }
  if (job.row_bytes == job.pitch && job.parts.size() == 1) {
    job.parts[0].bytes = job.row_bytes = job.pitch = extent;  // No gaps.
  }
  return job;
}

bool IsOnePiece(const ReadJob& job) {
  return job.parts.size() == 1 && job.row_bytes == job.bytes;
}

bool MayJoin(const ReadJob& job, const ReadJob& next) {
  return job.file == next.file && IsOnePiece(job) && IsOnePiece(next) &&
         job.parts[0].offset + job.bytes == next.parts[0].offset &&
         job.to + job.bytes == next.to && job.bytes < kPiece &&
         next.bytes <= kPiece - job.bytes;
}

}  // namespace

absl::StatusOr<std::vector<ReadJob>> PlanReads(
    const TensorManifest& manifest, absl::Span<const FileRead> reads) {
  std::vector<bool> seen(manifest.tensors.size());
  std::vector<ReadJob> each;
  for (std::size_t begin = 0, end = 0; begin < reads.size(); begin = end) {
    const std::size_t tensor = reads[begin].tensor;
    while (end < reads.size() && reads[end].tensor == tensor) ++end;
    const TensorInfo& info = manifest.tensors[tensor];
    if (seen[tensor]) {
      return OfTensor(info.name,
                      "is to be read twice: expected its parts one after "
                      "the other");
    }
    seen[tensor] = true;
    if (info.extent() == 0) continue;
    ASSIGN_OR_RETURN(ReadJob job,
                     JobOf(info, reads.subspan(begin, end - begin)));
    each.push_back(std::move(job));
  }
  std::sort(each.begin(), each.end(), [](const ReadJob& a, const ReadJob& b) {
    return std::tie(a.file, a.parts[0].offset, a.to) <
           std::tie(b.file, b.parts[0].offset, b.to);
  });
  std::vector<ReadJob> jobs;
  for (ReadJob& job : each) {
    if (jobs.empty() || !MayJoin(jobs.back(), job)) {
      jobs.push_back(std::move(job));
      continue;
    }
    ReadJob& last = jobs.back();
    last.bytes += job.bytes;
    last.tensors.push_back(job.tensors[0]);
    last.parts[0].bytes = last.row_bytes = last.pitch = last.bytes;
  }
  std::stable_sort(
      jobs.begin(), jobs.end(),
      [](const ReadJob& a, const ReadJob& b) { return a.bytes > b.bytes; });
  return jobs;
}

}  // namespace vmm::weights
