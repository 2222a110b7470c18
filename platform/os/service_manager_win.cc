#include "platform/os/service_manager.h"

namespace vmm::platform {
namespace {

absl::Status NotHere() {
  return absl::UnimplementedError(
      "Windows has no service manager that keeps handles of a process");
}

}  // namespace

absl::StatusOr<ServiceManager> ServiceManager::Find() { return NotHere(); }

absl::Status ServiceManager::Ready(Deadline) { return NotHere(); }

absl::Status ServiceManager::Store(absl::string_view, const OsHandle&,
                                   Deadline) {
  return NotHere();
}

absl::Status ServiceManager::Remove(absl::string_view, Deadline) {
  return NotHere();
}

absl::Status ServiceManager::Barrier(Deadline) { return NotHere(); }

std::optional<FileNumber> FileNumberOf(const OsHandle&) { return std::nullopt; }

StoredHandles TakeStoredHandles() { return {}; }

}  // namespace vmm::platform
