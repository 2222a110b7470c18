#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/own_lifeline_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

// As pread(), where signals interrupt it too.
ssize_t ReadAt(const OsHandle& handle, void* to, std::size_t size,
               off_t offset) {
  for (;;) {
    const ssize_t read = ::pread(Fd(handle), to, size, offset);
    if (read >= 0 || errno != EINTR) return read;
  }
}

// Asks neither the page's size nor its end, which wait for its inode.
absl::Status CheckIsPage(const OsHandle& handle) {
  const int seals = ::fcntl(Fd(handle), F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SEAL | F_SEAL_WRITE)) != 0) {
    return absl::InvalidArgumentError(
        "the peer sent a lifeline that is none: no memfd that can be sealed");
  }
  if (OwnLifelinesAreSealed() && (seals & kLifelineSeals) != kLifelineSeals) {
    return absl::InvalidArgumentError(
        "the peer sent a lifeline that is none: others can write to it");
  }
  std::uint8_t end[2];
  if (ReadAt(handle, end, sizeof(end), kLifelineBytes - 1) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer sent a lifeline that is none: it has other than ",
        kLifelineBytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SendLifeline(Channel& channel, Deadline deadline) {
  ASSIGN_OR_RETURN(const OsHandle own, TakeOwnLifeline());
  return channel.Send(kLifelineMessage, {}, {&own}, deadline);
}

absl::StatusOr<OsHandle> ReceiveLifeline(Channel& channel, Deadline deadline,
                                         const CancelEvent* cancel,
                                         std::uint16_t* type) {
  ASSIGN_OR_RETURN(Message message, channel.Receive(deadline, cancel));
  if (type != nullptr) *type = message.type;
  if (message.type != kLifelineMessage || !message.payload.empty() ||
      message.handles.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of type 0x", absl::Hex(message.type), " with ",
        message.payload.size(), " bytes and ", message.handles.size(),
        " handles came where the peer's lifeline was expected (type 0x",
        absl::Hex(kLifelineMessage), ", one handle)"));
  }
  RETURN_IF_ERROR(CheckIsPage(message.handles[0]));
  return std::move(message.handles[0]);
}

absl::StatusOr<LifelineReading> ReadLifeline(const OsHandle& lifeline) {
  LifelineReading reading;
  // The kernel refuses this seal while anybody maps the page for writing.
  if (::fcntl(Fd(lifeline), F_ADD_SEALS, F_SEAL_WRITE) != 0) {
    if (errno != EBUSY) {
      return LastError().Of("fcntl(lifeline, F_ADD_SEALS, F_SEAL_WRITE)");
    }
    reading.mapped = true;
    return reading;
  }
  std::uint64_t counts[2] = {};
  const ssize_t size = ReadAt(lifeline, counts, sizeof(counts), 0);
  if (size != sizeof(counts)) {
    return size < 0 ? LastError().Of("pread(lifeline)")
                    : absl::DataLossError("a lifeline has too few bytes");
  }
  reading.forks = counts[0];
  reading.unseen = counts[1] != 0;
  return reading;
}

}  // namespace vmm::platform
