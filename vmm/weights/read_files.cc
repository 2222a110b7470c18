// Bytes of files to the tensors of a set that is being written.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/file_reader.h"
#include "platform/os/start_thread.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/read_plan.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {
namespace {

using platform::FileReader;
using weights::kPiece;
using weights::MemoryCopy;
using weights::ReadJob;
using weights::ReadPart;

// Rows whose parts are so short are read together with what is between them.
constexpr std::uint64_t kShortPart = std::uint64_t{16} << 10;
// What is read at once is still in a core's own cache when its checksum is taken by
// that; else larger reads are faster (measured: 7.3 GB a second of 4 MiB, and 5.8).
constexpr std::uint64_t kCachedRead = std::uint64_t{128} << 10;
// Of less the device takes no checksums: to launch and wait is no faster.
constexpr std::uint64_t kMuch = std::uint64_t{1} << 20;
// How often whoever waits for the threads looks.
constexpr std::chrono::milliseconds kLook{50};
// By default; more hardly read faster than memory does.
constexpr unsigned kMostThreads = 8;

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

enum class TensorSetWriter::Checksum {
  kOnTheWay,   // By the thread that reads.
  kAfterwards  // By the device, when all are there.
};

absl::StatusOr<TensorSetWriter::Checksum> TensorSetWriter::BeginReads(
    absl::Span<const FileRead> reads) {
  std::uint64_t bytes = 0;
  for (const FileRead& read : reads) {
    Progress& progress = progress_[read.tensor];
    bytes += progress.extent;
    // All of it comes anew, from first to last.
    progress.next = 0;
    progress.crc = 0;
    progress.in_order = true;
  }
  if (bytes < kMuch) return Checksum::kOnTheWay;
  ASSIGN_OR_RETURN(const bool by_device, memory_->DeviceTakesChecksums());
  if (!by_device) return Checksum::kOnTheWay;
  return Checksum::kAfterwards;
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

// A job that is under way, on one thread.
class TensorSetWriter::JobReader {
 public:
  // Bytes of the device's go by `stage`, and are there after its Finish().
  JobReader(TensorSetWriter& writer, Checksum checksum, const ReadJob& job,
            const FileReader& file, const std::string& path,
            MemoryCopy::Stage& stage, const std::atomic<bool>* stop = nullptr,
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
  absl::Status ReadAll() {
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
      ASSIGN_OR_RETURN(size, is_short ? ReadRows(bytes)
                                      : ReadParts(bytes, job_.bytes - done));
      if (is_staged) {
        RETURN_IF_ERROR(
            writer_.memory_->WriteStaged(job_.to + done, stage_, size));
      }
      if (told_ != nullptr) *told_ += size;
    }
    return absl::OkStatus();
  }

 private:
  // As many rows as fit a piece; returns how many bytes they have.
  absl::StatusOr<std::uint64_t> ReadRows(std::uint8_t* bytes) {
    const std::uint64_t rows =
        std::min(job_.rows() - row_, kPiece / job_.pitch);
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

  // A piece of what is left, part by part; returns how many bytes it has.
  absl::StatusOr<std::uint64_t> ReadParts(std::uint8_t* bytes,
                                          std::uint64_t left) {
    const std::uint64_t size = std::min(left, kPiece);
    const std::uint64_t most =
        checksum_ == Checksum::kOnTheWay ? kCachedRead : kPiece;
    for (std::uint64_t done = 0; done < size;) {
      const ReadPart& part = job_.parts[part_];
      const absl::Span<std::uint8_t> next(
          bytes + done, static_cast<std::size_t>(std::min(
                            {part.bytes - within_, size - done, most})));
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

  absl::Status Read(std::uint64_t offset, absl::Span<std::uint8_t> bytes) {
    ASSIGN_OR_RETURN(const std::size_t came, file_.Read(offset, bytes));
    if (came == bytes.size()) return absl::OkStatus();
    // Of several tensors, that in which it ends.
    if (job_.tensors.size() > 1) Count(bytes.first(came));
    const TensorInfo& info = writer_.manifest_.tensors[job_.tensors[tensor_]];
    return absl::DataLossError(absl::StrCat(
        "the file ", path_, " ends within tensor \"", weights::Shown(info.name),
        "\" of ", info.extent(), " bytes, at ", offset + came, ": it is cut"));
  }

  // These came next, of whichever tensors they are.
  void Count(absl::Span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      const std::size_t tensor = job_.tensors[tensor_];
      const std::uint64_t left =
          writer_.manifest_.tensors[tensor].extent() - counted_;
      const absl::Span<const std::uint8_t> here =
          bytes.subspan(0, static_cast<std::size_t>(
                               std::min<std::uint64_t>(left, bytes.size())));
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

  TensorSetWriter& writer_;
  const Checksum checksum_;
  const ReadJob& job_;
  const FileReader& file_;
  const std::string& path_;
  MemoryCopy::Stage& stage_;
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
          thread, "that reads files of tensors", [this] { Run(); });
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
