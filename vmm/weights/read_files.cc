// Bytes of files to the tensors of a set that is being written.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/file_reader.h"
#include "platform/os/start_thread.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/read_job.h"
#include "vmm/weights/internal/read_plan.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {
namespace {

using platform::FileReader;
using weights::kPiece;
using weights::MemoryCopy;
using weights::ReadJob;

// Of less the device takes no checksums: to launch and wait is no faster.
constexpr std::uint64_t kMuch = std::uint64_t{1} << 20;
// How often whoever waits for the threads looks.
constexpr std::chrono::milliseconds kLook{50};
// By default; more hardly read faster than memory does.
constexpr unsigned kMostThreads = 8;

}  // namespace

absl::StatusOr<TensorSetWriter::Checksum> TensorSetWriter::BeginReads(
    absl::Span<const FileRead> reads) {
  std::uint64_t bytes = 0;
  for (const FileRead& read : reads) {
    Progress& progress = progress_[read.tensor];
    progress.may_be_copying = true;
    bytes += progress.extent;
    // All of it comes anew, from first to last.
    progress.next = 0;
    progress.crc = 0;
    progress.in_order = true;
  }
  if (bytes < kMuch) return Checksum::kOnTheWay;
  ASSIGN_OR_RETURN(const bool by_device, memory_->DeviceTakesChecksums());
  return by_device ? Checksum::kAfterwards : Checksum::kOnTheWay;
}

absl::Status TensorSetWriter::EndReads(absl::Span<const FileRead> reads,
                                       Checksum checksum) {
  if (checksum == Checksum::kOnTheWay) return absl::OkStatus();
  std::vector<std::size_t> tensors;
  for (const FileRead& read : reads) {
    if (tensors.empty() || tensors.back() != read.tensor) {
      tensors.push_back(read.tensor);
    }
  }
  return TakeChecksumsOf(tensors);
}

// Jobs that several threads do, which end with this.
class TensorSetWriter::JobThreads {
 public:
  JobThreads(TensorSetWriter& writer, Checksum checksum,
             const std::vector<ReadJob>& jobs,
             const std::vector<FileReader>& files,
             absl::Span<const std::string> paths)
      : writer_(writer),
        checksum_(checksum),
        jobs_(jobs),
        files_(files),
        paths_(paths) {}
  ~JobThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  JobThreads(const JobThreads&) = delete;
  JobThreads& operator=(const JobThreads&) = delete;

  // RESOURCE_EXHAUSTED when not even one can be started; fewer will do.
  absl::Status Start(std::size_t count) {
    threads_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      {
        const platform::MutexLock lock(mutex_);
        ++running_;
      }
      std::thread thread;
      const absl::Status started = platform::StartThread(
          thread, "vmmshare-read", "that reads files of tensors",
          [this] { Run(); });
      if (started.ok()) {
        threads_.push_back(std::move(thread));
        continue;
      }
      const platform::MutexLock lock(mutex_);
      --running_;
      return i == 0 ? started : absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // Whether all have ended, within kLook.
  bool Await() {
    const platform::MutexLock lock(mutex_);
    if (running_ > 0) ended_.WaitFor(mutex_, kLook);
    return running_ == 0;
  }
  std::uint64_t done() const { return done_; }
  // The first that one of them had. REQUIRES: all have ended.
  absl::Status status() {
    const platform::MutexLock lock(mutex_);
    return status_;
  }

 private:
  void Run() {
    absl::Status status;
    try {
      status = DoJobs();
    } catch (const std::bad_alloc&) {  // Past a thread it ends the program.
      status = no_memory_;
    }
    const platform::MutexLock lock(mutex_);
    if (!status.ok()) stop_ = true;
    status_.Update(status);
    if (--running_ == 0) ended_.NotifyAll();
  }

  absl::Status DoJobs() {
    MemoryCopy::Stage stage = writer_.memory_->MakeStage();
    while (!stop_) {
      const std::size_t next = next_++;
      if (next >= jobs_.size()) break;
      const ReadJob& job = jobs_[next];
      RETURN_IF_ERROR(JobReader(writer_, checksum_, job, files_[job.file],
                                paths_[job.file], stage, &stop_, &done_)
                          .ReadAll());
    }
    return stage.Finish();
  }

  TensorSetWriter& writer_;
  const Checksum checksum_;
  const std::vector<ReadJob>& jobs_;
  const std::vector<FileReader>& files_;
  const absl::Span<const std::string> paths_;
  // Made while there is memory to say it.
  const absl::Status no_memory_ = absl::ResourceExhaustedError(absl::StrCat(
      "a thread that reads files of tensors has no memory of the host left, of "
      "which it takes ",
      kPiece, " bytes and some. Have fewer threads read, or end what has it."));
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;  // Bytes.
  std::atomic<bool> stop_ = false;
  platform::Mutex mutex_;
  platform::CondVar ended_;
  std::size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::Status TensorSetWriter::ReadFile(std::size_t tensor,
                                       const std::string& path,
                                       std::uint64_t offset) {
  RETURN_IF_ERROR(CheckMayWrite(tensor, 0, 0));
  const std::uint64_t extent = manifest_.tensors[tensor].extent();
  return ReadFileRows(tensor, path, {offset, extent, extent});
}

absl::Status TensorSetWriter::ReadFileRows(std::size_t tensor,
                                           const std::string& path,
                                           const FileRows& rows) {
  RETURN_IF_ERROR(CheckMayWrite(tensor, 0, 0));
  const FileRead read{tensor, 0, rows};
  ASSIGN_OR_RETURN(const std::vector<ReadJob> jobs,
                   weights::PlanReads(manifest_, {&read, 1}));
  ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(path));
  ASSIGN_OR_RETURN(const Checksum checksum, BeginReads({&read, 1}));
  MemoryCopy::Stage stage = memory_->MakeStage();
  for (const ReadJob& job : jobs) {  // None without bytes.
    RETURN_IF_ERROR(
        JobReader(*this, checksum, job, file, path, stage).ReadAll());
  }
  RETURN_IF_ERROR(stage.Finish());
  return EndReads({&read, 1}, checksum);
}

absl::Status TensorSetWriter::ReadFiles(absl::Span<const std::string> paths,
                                        absl::Span<const FileRead> reads,
                                        const ReadFilesOptions& options) {
  for (const FileRead& read : reads) {
    RETURN_IF_ERROR(CheckMayWrite(read.tensor, 0, 0));
    if (read.file >= paths.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("file ", read.file, " of ", paths.size()));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<ReadJob> jobs,
                   weights::PlanReads(manifest_, reads));
  std::vector<FileReader> files;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(FileReader file, FileReader::Open(path));
    files.push_back(std::move(file));
  }
  std::uint64_t total = 0;
  for (const ReadJob& job : jobs) total += job.bytes;
  const auto tell = [&](std::uint64_t done) {
    return options.progress == nullptr ? absl::OkStatus()
                                       : options.progress(done, total);
  };
  const std::size_t threads =
      options.threads != 0
          ? options.threads
          : std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  ASSIGN_OR_RETURN(const Checksum checksum, BeginReads(reads));
  {
    JobThreads readers(*this, checksum, jobs, files, paths);
    RETURN_IF_ERROR(readers.Start(std::min(threads, jobs.size())));
    while (!readers.Await()) RETURN_IF_ERROR(tell(readers.done()));
    RETURN_IF_ERROR(readers.status());
  }
  RETURN_IF_ERROR(EndReads(reads, checksum));
  return tell(total);
}

}  // namespace vmm
