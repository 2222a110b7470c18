// Handles on their way to another process; internal to platform/.
//
// A handle is a number in one process's table, so a message can only carry
// what the number is in the receiver's. The server's side (the one that
// listens) does all the work, with a process handle of the client that has
// PROCESS_DUP_HANDLE. The client never gets that right on the server: whoever
// has it owns the other process.
//
//   server to client: the server duplicates each handle into the client and
//     sends the new numbers. If the message cannot be delivered it closes
//     them there (DUPLICATE_CLOSE_SOURCE).
//   client to server: the client parks a duplicate of each handle in its own
//     table and sends the numbers. The server duplicates them out of the
//     client and says how many it took; the client then closes them. So they
//     are closed by their owner alone, however late the answer comes.
//
// Duplicates have the access of the original, less the rights to change who
// may do what with the object.
#ifndef VMMSHARE_PLATFORM_IPC_TRANSIT_WIN_H_
#define VMMSHARE_PLATFORM_IPC_TRANSIT_WIN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

inline constexpr std::size_t kHandleBytes = 8;  // Of one number in a message.

// Duplicates that are closed again unless Keep() is called.
class PushedHandles {
 public:
  // Into `process`, which needs PROCESS_DUP_HANDLE and must outlive this.
  explicit PushedHandles(const OsHandle& process) : process_(process) {}
  ~PushedHandles();
  PushedHandles(const PushedHandles&) = delete;
  PushedHandles& operator=(const PushedHandles&) = delete;

  // INVALID_ARGUMENT when `handle` is not open here.
  absl::Status Push(const OsHandle& handle);
  const std::vector<std::int64_t>& values() const { return values_; }
  void Keep() { values_.clear(); }

 private:
  const OsHandle& process_;
  std::vector<std::int64_t> values_;
};

// A duplicate of `handle` in this process, as a peer shall get it.
absl::StatusOr<OsHandle> Park(const OsHandle& handle);

// The handle `value` of `process`, taken over by a duplicate: the original
// stays. DATA_LOSS when it is none.
absl::StatusOr<OsHandle> Pull(const OsHandle& process, std::int64_t value);

// The handle `value`, which a server pushed into this process. DATA_LOSS when
// it is not open.
absl::StatusOr<OsHandle> TakePushed(std::int64_t value);

// How a server tells a client that it took `count` parked handles: a message
// that is too short to be a frame.
inline constexpr std::size_t kTakenBytes = 8;
std::array<std::uint8_t, kTakenBytes> EncodeTaken(std::uint32_t count);
// The count in `message`, or 0 if it is something else.
std::uint32_t DecodeTaken(absl::Span<const std::uint8_t> message);

void StoreHandle(std::int64_t value, std::uint8_t* at);
std::int64_t LoadHandle(const std::uint8_t* at);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_TRANSIT_WIN_H_
