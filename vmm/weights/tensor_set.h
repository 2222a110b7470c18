// TensorSet: named tensors in one range of memory, complete and read-only.
//
// Data first, the manifest behind it: so a set travels with whatever carries the
// memory, a keeper (keeper.h), an endpoint (endpoint.h), a pool's ticket or a
// fabric ticket, and needs nothing beside it. In a keeper it outlives its maker
// and is replaced in one step:
//
//   TensorLayout layout({.fingerprint = "sha256:..."});
//   ... layout.Add(name, dtype, shape) ...
//   Allocation memory = ... Allocation::Create(device, {.size = layout.size()});
//   TensorSetWriter writer = ... TensorSetWriter::Begin(driver, memory.address(),
//                                                       memory.requested_size(), layout);
//   ... writer.Write(tensor, 0, bytes), or a kernel at writer.address(tensor) ...
//   absl::StatusOr<std::uint64_t> generation = PublishTensorSet(
//       keeper, "llama/tp0", memory.shareable(), writer, deadline);
//
//   // Another process, then or after the first one has ended:
//   absl::StatusOr<KeptTensorSet> kept =
//       AttachTensorSet(keeper, "llama/tp0", driver, {}, deadline);
//   const TensorInfo* embed = kept->set.Find("embed.weight");
//   CUdeviceptr p = kept->set.address(*embed);
//
// What is in a set is its maker's word: readers check that the manifest makes
// sense and that every tensor lies within the memory, and can compare checksums
// (Verify). They cannot know that a maker who means harm does not write on.
#ifndef VMMSHARE_VMM_WEIGHTS_TENSOR_SET_H_
#define VMMSHARE_VMM_WEIGHTS_TENSOR_SET_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"
#include "vmm/keeper/keeper.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/weights/manifest.h"

namespace vmm {

namespace weights {
class MemoryCopy;
}  // namespace weights

// Fills memory with a set. Move-only. Writes to different tensors may come from
// several threads at once; everything else is for one thread.
//
// The memory is the caller's, of any kind that cuMemCreate() makes, and outlives
// the writer. Until Seal() it holds no set: readers are told so.
class TensorSetWriter {
 public:
  // Lays `layout` out in `size` bytes at `address`, and takes away what set was
  // there before. Memory of a device is written in its primary context, which is
  // made if nobody has. Of memory that can be shared the writer keeps a handle of
  // each chunk open, if it gets them all: the first takes the driver long, and while it
  // publishes readers would wait for that.
  // REQUIRES: all of it is mapped for whoever has access to its beginning, until the
  // writer ends.
  //   INVALID_ARGUMENT     `size` is less than layout.size(), or leaves the memory;
  //                        notes that no manifest has
  //   RESOURCE_EXHAUSTED   more names and metadata than a manifest has room for
  //   FAILED_PRECONDITION  memory that is not cuMemCreate()'s
  static absl::StatusOr<TensorSetWriter> Begin(const platform::Driver& driver,
                                               CUdeviceptr address,
                                               std::uint64_t size,
                                               const TensorLayout& layout);
  // Waits for its own copies: the memory may go then. After reads of files and
  // checksums by the device it waits for all work of the device too, but only where
  // the host has no memory of cuMemCreate() for these (docs/sleep.md): it calls
  // cuMemFreeHost() then.
  ~TensorSetWriter();
  TensorSetWriter(TensorSetWriter&&) noexcept;
  TensorSetWriter& operator=(TensorSetWriter&&) noexcept;

  const TensorManifest& manifest() const { return manifest_; }
  // Where a tensor's first element goes, for kernels and copies of the program's
  // own. REQUIRES: tensor < manifest().tensors.size().
  CUdeviceptr address(std::size_t tensor) const;

  // Copies bytes of the host's to `offset` within a tensor's bytes, and takes
  // their checksum on the way: known at the end if they came from first to last.
  // OUT_OF_RANGE for what leaves the tensor; INVALID_ARGUMENT for an alias, whose
  // bytes are another's; FAILED_PRECONDITION once it is sealed.
  absl::Status Write(std::size_t tensor, std::uint64_t offset,
                     absl::Span<const std::uint8_t> bytes);
  // The same, of all of a tensor's bytes, from `offset` of a file on. Memory of the
  // host is read into directly; in memory of a device, the device takes the checksum
  // when all is there. NOT_FOUND for a file that is not there, others as the system
  // answers; DATA_LOSS for one that ends too early.
  absl::Status ReadFile(std::size_t tensor, const std::string& path,
                        std::uint64_t offset);
  // The same, where the file has the tensor as a part of another: a slice in a
  // dimension that is not the outermost one, for a rank of several.
  // INVALID_ARGUMENT for rows that do not make up the tensor, or lie in each
  // other.
  struct FileRows {
    std::uint64_t offset = 0;     // Of the first one, in the file.
    std::uint64_t row_bytes = 0;  // Of each, side by side in the tensor.
    std::uint64_t pitch = 0;      // From one to the next, in the file.
  };
  absl::Status ReadFileRows(std::size_t tensor, const std::string& path,
                            const FileRows& rows);
  // The same, of many tensors by several threads. Reads of one tensor come one
  // after the other, from one file and with one pitch: their rows side by side
  // make up a row of it, and lie in this order in the file.
  struct FileRead {
    std::size_t tensor = 0;
    std::size_t file = 0;  // Of `paths`.
    FileRows rows = {};
  };
  struct ReadFilesOptions {
    std::size_t threads = 0;  // 0: as many as processors, at most 8.
    // Called on the calling thread, with bytes: every 50 ms, and when all are
    // read. An error ends the reading, and is its error. What it throws ends it too,
    // and goes on to the caller.
    std::function<absl::Status(std::uint64_t done, std::uint64_t total)>
        progress = nullptr;
  };
  // The first error that a thread had; none reads on when it returns. Tensors
  // that lie side by side in a file and here are read and copied together.
  // OUT_OF_RANGE for a file that is not of `paths`; all of them are opened.
  absl::Status ReadFiles(absl::Span<const std::string> paths,
                         absl::Span<const FileRead> reads,
                         const ReadFilesOptions& options);

  // Copies all of a tensor's bytes from device memory, where they lie as they are
  // to lie here; no checksum is taken. What writes there has ended; it stays there
  // until Seal() or the writer's end, for the copy may go on till then. Errors as
  // Write(); FAILED_PRECONDITION from a device to memory of the host while no
  // context is current.
  absl::Status CopyFrom(std::size_t tensor, CUdeviceptr from);

  // The same of many, in the order of `stream` of the device's primary context, null
  // or CU_STREAM_LEGACY for its default one: at the rate of one copy of as much where
  // they lie on the set's device, also if they are many and small.
  // What is copied stays there, and the set's memory too, until `stream` has passed:
  // the writer waits for its copies on the default one alone. A set in memory of the
  // host has them when it returns.
  // Of no tensors it loads its kernel, which cannot be had while streams wait. The set
  // may be sealed; then the caller keeps its readers away meanwhile.
  //   OUT_OF_RANGE, INVALID_ARGUMENT  before anything is copied: no such tensor; an
  //                                   alias
  //   else                            as the driver reports; some may be copied
  struct Source {
    std::size_t tensor = 0;
    CUdeviceptr from = 0;
  };
  enum class From {
    kAnywhere,  // The driver is asked, about a microsecond a mapping.
    kDevice,    // All of it is the set's device's own, as the caller knows.
  };
  absl::Status CopyAll(absl::Span<const Source> sources, CUstream stream,
                       From from = From::kAnywhere);

  // Takes the checksums of all tensors whose bytes did not come by Write() or
  // ReadFile(), for Seal(). FAILED_PRECONDITION once it is sealed.
  // The device takes them at the rate of its memory, from CUDA 12.1 and Volta on, where
  // 2 MiB are left; else they are read back, a few GB a second. Reads of files and
  // Verify() take them so, too. For the first in a context the driver may wait for the
  // GPU: take one before streams wait for what comes later.
  // REQUIRES: all work that writes to the tensors has ended, the GPU's too.
  absl::Status TakeChecksums();

  struct SealOptions {
    std::uint64_t generation = 1;
  };
  // Completes the set: from now on readers have it. The last bytes written say
  // so, and nothing is there for a reader if the process ends before.
  // INVALID_ARGUMENT for generation 0; FAILED_PRECONDITION when it is sealed; else as
  // the driver reports.
  // REQUIRES: all work that writes to the tensors has ended, the GPU's too.
  absl::Status Seal(const SealOptions& options);
  bool is_sealed() const { return is_sealed_; }
  // Takes Seal() and TakeChecksums() back: the set may be written to, and sealed,
  // again.
  // REQUIRES: nobody else has the memory.
  void Reopen();
  // Whether `memory` is what Begin() was given, so that whoever has it finds the
  // set there. FAILED_PRECONDITION for memory of another size; INVALID_ARGUMENT for
  // other memory, and where the set does not begin with it; else as the driver
  // answers.
  absl::Status CheckWritesTo(const Shareable& memory) const;
  // Bytes of memory that Begin() was given.
  std::uint64_t memory_size() const;
  const platform::Driver& driver() const;

 private:
  enum class Checksum;
  class JobReader;
  class JobThreads;
  struct Progress {
    // Of the manifest, in which each has memory of its own.
    std::uint64_t offset = 0;
    std::uint64_t extent = 0;
    bool is_alias = false;
    std::uint64_t next = 0;  // Bytes that came, from first on.
    std::uint32_t crc = 0;   // Of these.
    bool in_order = true;
    // By TakeChecksums(): who has the address may write to it until it is sealed.
    bool was_taken = false;
    bool may_be_copying = false;  // On the default stream.
    bool is_complete() const { return in_order && next == extent; }
  };
  TensorSetWriter(TensorManifest manifest,
                  std::unique_ptr<weights::MemoryCopy> memory);
  void FinishCopies();
  // Whether there is such a tensor of its own.
  absl::Status CheckIsOwn(std::size_t tensor) const;
  absl::Status CheckMayWrite(std::size_t tensor, std::uint64_t offset,
                             std::uint64_t size) const;
  void Count(std::size_t tensor, std::uint64_t offset,
             absl::Span<const std::uint8_t> bytes);
  // Who takes the checksums of what is read from files, and that it is taken.
  absl::StatusOr<Checksum> BeginReads(absl::Span<const FileRead> reads);
  absl::Status EndReads(absl::Span<const FileRead> reads, Checksum checksum);
  // REQUIRES: none is an alias.
  absl::Status TakeChecksumsOf(absl::Span<const std::size_t> tensors);

  TensorManifest manifest_;
  std::vector<ExportedHandle> handles_;  // Of the memory's chunks.
  std::unique_ptr<weights::MemoryCopy> memory_;
  std::vector<Progress> progress_;
  bool is_sealed_ = false;
  bool end_may_be_copying_ = false;  // Manifest or trailer, likewise.
};

// A sealed set in memory that is mapped here. Move-only; const calls are
// thread-safe. The memory is the caller's and outlives it.
class TensorSet {
 public:
  // Reads the manifest of the set in exactly the `size` bytes that its writer had.
  // REQUIRES: all of it is mapped for whoever has access to its beginning, until the
  // set goes.
  //   FAILED_PRECONDITION  no set is there, or half of one; memory that is not
  //                        cuMemCreate()'s
  //   INVALID_ARGUMENT     damaged, or it contradicts itself
  //   UNIMPLEMENTED        of a newer version
  //   RESOURCE_EXHAUSTED   more tensors than kMaxTensors, or another limit
  static absl::StatusOr<TensorSet> Open(const platform::Driver& driver,
                                        CUdeviceptr address,
                                        std::uint64_t size);
  ~TensorSet();  // After Verify(), as a writer's.
  TensorSet(TensorSet&&) noexcept;
  TensorSet& operator=(TensorSet&&) noexcept;

  const TensorManifest& manifest() const { return manifest_; }
  // The tensor of this name; null when there is none.
  const TensorInfo* Find(absl::string_view name) const;
  // REQUIRES: one of manifest().tensors.
  CUdeviceptr address(const TensorInfo& tensor) const;

  // Compares the data with the checksums, which are taken as TakeChecksums() does.
  // DATA_LOSS names the first tensor that differs. Returns how many tensors had one.
  // FAILED_PRECONDITION while a stream is captured that synchronises with the default
  // one.
  absl::StatusOr<std::size_t> Verify() const;

 private:
  TensorSet(TensorManifest manifest,
            std::unique_ptr<weights::MemoryCopy> memory);

  TensorManifest manifest_;
  std::vector<std::uint32_t> by_name_;
  std::unique_ptr<weights::MemoryCopy> memory_;
};

// Seals what `writer` wrote to `memory`, and has the keeper keep it under the
// name, in place of the set that is there: the next generation. One step: who
// attaches has all of the old set or all of the new. Those who have the old one
// attached keep it; it goes with the last of them. Returns the generation. The old
// set may be of a GPU that this process does not see: that of `memory` reads it.
//   FAILED_PRECONDITION  something that is no tensor set is kept under the name, or
//                        one of the last generation that there is; `memory` has
//                        another size than the writer's
//   INVALID_ARGUMENT     the writer writes to other memory than `memory`; nothing
//                        was sealed
//   ABORTED              another writer was faster, with the first set too: attach
//                        its set, or publish anew; or the set was dropped meanwhile
//   else                 as KeeperClient::Replace
// `deadline` is the keeper's: Seal() waits for the device without one
// (docs/ordering.md#which-calls-stand-then).
// After an error the writer is open again, without what TakeChecksums() took, unless
// it was sealed before or somebody may have the set: the keeper's answer did not
// come.
absl::StatusOr<std::uint64_t> PublishTensorSet(KeeperClient& keeper,
                                               absl::string_view name,
                                               const Shareable& memory,
                                               TensorSetWriter& writer,
                                               Deadline deadline);

struct AttachTensorSetOptions {
  ImportOptions import = {};  // Read-only, as sealed memory is.
  // FAILED_PRECONDITION for a set with another one; none: any.
  std::optional<std::string> fingerprint = std::nullopt;
};

// A set, and the memory that it is in. Move-only.
struct KeptTensorSet {
  ImportedAllocation memory;
  TensorSet set;
};

// Maps the set that the keeper has under the name. Errors as KeeperClient::Attach
// and TensorSet::Open, which copies from the device, and waits for that without a
// deadline.
absl::StatusOr<KeptTensorSet> AttachTensorSet(
    KeeperClient& keeper, absl::string_view name,
    const platform::Driver& driver, const AttachTensorSetOptions& options,
    Deadline deadline);

}  // namespace vmm

#endif  // VMMSHARE_VMM_WEIGHTS_TENSOR_SET_H_
