// The reading of one job of a plan; internal to vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_JOB_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/os/file_reader.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/read_plan.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {

enum class TensorSetWriter::Checksum {
  kOnTheWay,   // By the thread that reads.
  kAfterwards  // By the device, when all are there.
};

// A job that is under way, on one thread.
class TensorSetWriter::JobReader {
 public:
  // Bytes of the device's go by `stage`, and are there after its Finish().
  JobReader(TensorSetWriter& writer, Checksum checksum,
            const weights::ReadJob& job, const platform::FileReader& file,
            const std::string& path, weights::MemoryCopy::Stage& stage,
            const std::atomic<bool>* stop = nullptr,
            std::atomic<std::uint64_t>* told = nullptr)
      : writer_(writer),
        checksum_(checksum),
        job_(job),
        file_(file),
        path_(path),
        stage_(stage),
        stop_(stop),
        told_(told) {}

  // CANCELLED once it is to stop.
  absl::Status ReadAll();

 private:
  // As many rows as fit a piece; returns how many bytes they have.
  absl::StatusOr<std::uint64_t> ReadRows(std::uint8_t* bytes);
  // A piece of what is left, part by part; returns how many bytes it has.
  absl::StatusOr<std::uint64_t> ReadParts(std::uint8_t* bytes,
                                          std::uint64_t left);
  absl::Status Read(std::uint64_t offset, absl::Span<std::uint8_t> bytes);
  // These came next, of whichever tensors they are.
  void Count(absl::Span<const std::uint8_t> bytes);

  TensorSetWriter& writer_;
  const Checksum checksum_;
  const weights::ReadJob& job_;
  const platform::FileReader& file_;
  const std::string& path_;
  weights::MemoryCopy::Stage& stage_;
  const std::atomic<bool>* const stop_;     // Null: it goes on to the end.
  std::atomic<std::uint64_t>* const told_;  // Bytes, with those of others.
  // What is read next.
  std::uint64_t row_ = 0;
  std::size_t part_ = 0;
  std::uint64_t within_ = 0;  // The part.
  // What is counted next.
  std::size_t tensor_ = 0;
  std::uint64_t counted_ = 0;  // Of that tensor.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_JOB_H_
