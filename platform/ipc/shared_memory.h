// SharedMemory: control memory that two processes have mapped at once.
//
// One process creates it and hands the handle to others over a Channel; they
// open it. Its size is fixed from the start: nobody can shrink it under
// another's mapping, which would end that process by SIGBUS.
//
//   absl::StatusOr<SharedMemory> memory =
//       SharedMemory::Create(4096, PeerAccess::kRead);
//   ... send memory->handle() ...
//   absl::StatusOr<SharedMemory> view =               // in the other process
//       SharedMemory::Open(handle, 4096, PeerAccess::kRead);
//
// What the other side can write is hostile: fetch each word once, by an atomic
// load, and check what was fetched.
//
// fork: the mapping is shared, so a child inherits it and sees, and can make,
// every later change. Programs that keep state of their own beside it (how
// often a slot is held) have that state copied, and the two copies drift apart:
// a child must leave the memory alone. Nothing needs to be undone in a child
// that only runs another program.
//
// Linux: a sealed memfd; kRead needs Linux 5.1. Windows: a section in the
// paging file, committed as a whole when it is made.
#ifndef VMMSHARE_PLATFORM_IPC_SHARED_MEMORY_H_
#define VMMSHARE_PLATFORM_IPC_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// What those who receive the handle may do with the memory.
enum class PeerAccess { kRead, kReadWrite };

// A mapped view: where it starts and how many bytes it has.
struct MappedViewTraits {
  using Value = absl::Span<std::uint8_t>;
  static Value Nothing() { return {}; }
  static bool Holds(Value value) { return !value.empty(); }
  static void Close(Value value);
};
using MappedView = Owned<MappedViewTraits>;

// Move-only. Moves, destruction and the accessors are thread-compatible; what
// threads and processes do with the bytes is theirs to order.
class SharedMemory {
 public:
  // Memory of `size` bytes, all zero, mapped for reading and writing here.
  // Peers can map it as `peers` says, whatever they try: with kRead the kernel
  // refuses every new writable mapping, this process's own included.
  // UNIMPLEMENTED where the kernel cannot promise that (before Linux 5.1);
  // RESOURCE_EXHAUSTED without memory or descriptors. REQUIRES: size > 0.
  static absl::StatusOr<SharedMemory> Create(std::size_t size,
                                             PeerAccess peers);

  // Maps memory that another process created. The handle stays the caller's
  // and may be closed afterwards. INVALID_ARGUMENT, saying what it is instead,
  // unless `handle` is
  // - Linux: a memfd of ordinary pages, sealed against shrinking (or its owner
  //   could end this process) and growing (so that its size stays what was
  //   checked), of exactly `size` bytes, and, for kReadWrite, open for writing
  //   and not sealed against it. That peers cannot write is the sender's
  //   concern: a receiver checks each word anyway. Huge pages are refused: one
  //   that is taken out of the file may not be there at the next touch.
  // - Windows: a section without a file and no program's, of `size` bytes
  //   rounded up to pages, with the rights that `access` needs and
  //   SECTION_QUERY.
  // REQUIRES: size > 0.
  static absl::StatusOr<SharedMemory> Open(const OsHandle& handle,
                                           std::size_t size, PeerAccess access);

  // What may be sent to peers: it gives them no more than Create() was told.
  // REQUIRES: made by Create().
  const OsHandle& handle() const;

  absl::Span<const std::uint8_t> bytes() const { return view_.get(); }
  // REQUIRES: made by Create(), or opened with kReadWrite.
  absl::Span<std::uint8_t> writable_bytes() const;

 private:
  SharedMemory(OsHandle handle, MappedView view, bool writable)
      : handle_(std::move(handle)),
        view_(std::move(view)),
        writable_(writable) {}

  OsHandle handle_;
  MappedView view_;
  bool writable_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_SHARED_MEMORY_H_
