// ServiceManager: systemd, if it runs this process as a service: tells it that
// the service is ready, and has it hold descriptors across restarts.
//
// The documented protocol of sd_notify(3) and sd_listen_fds(3), spoken without
// libsystemd: datagrams to $NOTIFY_SOCKET, descriptors from number 3 on when
// the service starts again. A unit keeps as many as FileDescriptorStoreMax=
// says, none by default. systemd silently closes those that are too many, and
// those of a file that it keeps already, under whatever name.
//
// Windows has nothing of the kind.
#ifndef VMMSHARE_PLATFORM_OS_SERVICE_MANAGER_H_
#define VMMSHARE_PLATFORM_OS_SERVICE_MANAGER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Move-only, thread-compatible.
class ServiceManager {
 public:
  // NOT_FOUND when $NOTIFY_SOCKET is not set, or ignored because the program is
  // set-user-id; UNIMPLEMENTED on Windows; INVALID_ARGUMENT for a value that is
  // no socket's name; others as connecting to it answers.
  static absl::StatusOr<ServiceManager> Find();

  // How many descriptors it keeps ($FDSTORE, systemd 254 and newer); nullopt
  // when it does not say.
  std::optional<std::uint64_t> capacity() const { return capacity_; }

  // READY=1.
  absl::Status Ready(Deadline deadline);

  // Gives it a descriptor to keep, under `name`: printable ASCII without ':',
  // at most 254 bytes. It keeps one of its own; `handle` may be closed. OK says
  // that it was sent, in order: see Barrier().
  absl::Status Store(absl::string_view name, const OsHandle& handle,
                     Deadline deadline);
  // Has it close what it keeps under `name`.
  absl::Status Remove(absl::string_view name, Deadline deadline);

  // Returns once it has read all that was sent before. DEADLINE_EXCEEDED.
  absl::Status Barrier(Deadline deadline);

 private:
  ServiceManager(OsHandle socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  absl::Status Send(absl::string_view state, const OsHandle* handle,
                    Deadline deadline);

  OsHandle socket_;
  std::string address_;
  std::optional<std::uint64_t> capacity_;
};

// Which file of memory `handle` is of: two of the same are kept once. Nothing
// for all else, as what a GPU's driver exports: each export is a file of its
// own.
using FileNumber = std::pair<std::uint64_t, std::uint64_t>;
std::optional<FileNumber> FileNumberOf(const OsHandle& handle);

struct StoredHandle {
  std::string name;
  OsHandle handle;
};
struct StoredHandles {
  std::vector<StoredHandle> handles;
  std::vector<std::string> problems;  // What could not be taken, and why.
};

// What the service manager held and has passed to this process. Not inherited
// by children. REQUIRES: called at most once, and before descriptors from 3 on
// could be anything else: it takes them over.
StoredHandles TakeStoredHandles();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_SERVICE_MANAGER_H_
