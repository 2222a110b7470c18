#include "platform/os/machine.h"

#include <optional>
#include <utility>

#include "platform/base/mutex.h"

namespace vmm::platform {

absl::StatusOr<const Machine*> ThisMachine() {
  static Mutex mutex;
  // Never destroyed: threads may ask while the process ends.
  static std::optional<Machine>& known ABSL_GUARDED_BY(mutex) =
      *new std::optional<Machine>;
  const MutexLock lock(mutex);
  if (!known.has_value()) {
    absl::StatusOr<Machine> read = ReadMachine();
    if (!read.ok()) return read.status();
    known = *std::move(read);
  }
  return &*known;
}

}  // namespace vmm::platform
