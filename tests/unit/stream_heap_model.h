// What a Heap promises of its streams, said in the plainest way.
#ifndef VMMSHARE_TESTS_UNIT_STREAM_HEAP_MODEL_H_
#define VMMSHARE_TESTS_UNIT_STREAM_HEAP_MODEL_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "vmm/pool/internal/block_book.h"
#include "vmm/pool/internal/heap.h"

namespace vmm::testing {

// A heap, streams that do work in their order, and for each byte that was ever
// freed which work must be done before it is used by whom. A piece of work has
// a number; a stream has *submitted* some, and the GPU has *done* some.
class ModelledStreams {
 public:
  explicit ModelledStreams(std::size_t streams);

  // Adds a range of one segment.
  void Grow(std::uint64_t size);
  // Has a segment come where a block of `size` bytes on the stream lacks memory,
  // `more` bytes larger than it must be, and allocates the block; not where its
  // addresses end, nor when the segment `fails` to come.
  absl::Status Extend(std::size_t stream, std::uint64_t size,
                      std::uint64_t more, bool fails);
  // Gives back those of which nothing is taken.
  void Shrink();

  // Allocates on a stream, and puts one piece of work on it that uses the
  // block. False when the heap has no room. An error says who still uses it.
  absl::StatusOr<bool> Allocate(std::size_t stream, std::uint64_t size,
                                std::uint64_t alignment);
  // Frees one on a stream, which need not be the one that it was taken on. With
  // `held`, as if a peer had it: the heap has it back when it is given back.
  void Free(std::size_t block, std::size_t stream, bool held = false);
  void GiveBack();

  // The GPU does `count` pieces of work of a stream, or what there is.
  void Run(std::size_t stream, std::uint64_t count);
  // Records a point of the stream, and looks at those that it has.
  // `too_early`: takes each for passed one piece of work before it is. Heaps
  // must not be told so; the model must notice.
  void Ask(std::size_t stream, bool too_early = false);
  // As ReleaseStream() does in the end. The points that the stream has are kept.
  void Forget(std::size_t stream);
  // Has the GPU make `to` wait for all that is on `from`, and the heap know it.
  void Wait(std::size_t to, std::size_t from);

  std::size_t blocks() const { return blocks_.size(); }
  absl::Status CheckAll() const { return heap_.CheckInvariants(); }
  // Everything done, asked and freed: what is not in a segment then.
  std::uint64_t LostBytes();

 private:
  // Work that must be done before anybody but `stream` uses a range.
  struct Use {
    std::uint64_t end = 0;  // Of the range.
    std::size_t stream = 0;
    std::uint64_t work = 0;
  };
  struct Stream {
    std::uint64_t submitted = 0;
    std::uint64_t done = 0;
    // Of each other stream, the work that this one's next comes after.
    std::map<std::size_t, std::uint64_t> after;
    // This one's work from `first` on is done after another's.
    struct Order {
      std::uint64_t first;
      std::size_t stream;
      std::uint64_t work;
    };
    std::vector<Order> orders;
    struct Point {
      std::uint64_t work;
      std::uint64_t epoch;
    };
    std::vector<Point> points;
  };

  static CUstream Value(std::size_t stream) {
    return reinterpret_cast<CUstream>(stream + 16);
  }
  // A block that the heap has just given the stream.
  absl::Status Take(pool::Block* block, std::size_t stream, std::uint64_t size,
                    std::uint64_t alignment);
  bool MayUse(std::size_t stream, const Use& use) const;
  void Note(std::uint64_t from, const Use& use);

  pool::BlockBook book_;
  pool::Heap heap_{0, book_};
  pool::Range* growing_ = nullptr;  // Once Extend() was called.
  std::vector<Stream> streams_;
  std::vector<pool::Block*> blocks_;
  struct Held {
    pool::Block* block;
    std::size_t stream;
    std::optional<std::uint64_t> epoch;  // Of the first point after it.
  };
  std::vector<Held> held_;
  std::map<std::uint64_t, Use> uses_;  // By where the range begins.
  CUdeviceptr next_base_ = CUdeviceptr{1} << 40;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_STREAM_HEAP_MODEL_H_
