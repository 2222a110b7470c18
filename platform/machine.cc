#include "platform/machine.h"

#include <mutex>
#include <optional>
#include <utility>

namespace vmm::platform {

absl::StatusOr<const Machine*> ThisMachine() {
  static std::mutex mutex;
  static std::optional<Machine> known;
  std::lock_guard<std::mutex> lock(mutex);
  if (!known.has_value()) {
    absl::StatusOr<Machine> read = ReadMachine();
    if (!read.ok()) return read.status();
    known = *std::move(read);
  }
  return &*known;
}

}  // namespace vmm::platform
