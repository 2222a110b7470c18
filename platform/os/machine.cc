#include "platform/os/machine.h"

#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"

namespace vmm::platform {

absl::StatusOr<const Machine*> ThisMachine() {
  static Mutex mutex;
  // Never destroyed: threads may ask while the process ends.
  static std::optional<Machine>& known ABSL_GUARDED_BY(mutex) =
      *new std::optional<Machine>;
  const MutexLock lock(mutex);
  if (!known.has_value()) {
    ASSIGN_OR_RETURN(known, ReadMachine());
  }
  return &*known;
}

absl::StatusOr<std::string> RandomName() {
  std::array<std::uint8_t, 16> bytes;
  RETURN_IF_ERROR(FillRandom(absl::MakeSpan(bytes)));
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace vmm::platform
