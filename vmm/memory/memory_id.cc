#include <array>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/base/wire.h"
#include "platform/os/machine.h"
#include "vmm/memory/shareable.h"

namespace vmm {
namespace {

// Not a static initialised by a lambda: drawing may fail, and is tried again.
absl::StatusOr<OwnerId> ThisOwner() {
  static platform::Mutex mutex;
  static std::optional<OwnerId> owner ABSL_GUARDED_BY(mutex);
  platform::MutexLock lock(mutex);
  if (!owner.has_value()) {
    OwnerId drawn;
    RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(drawn.bytes)));
    owner = drawn;
  }
  return *owner;
}

}  // namespace

std::string OwnerId::ToString() const {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string MemoryId::ToString() const {
  return absl::StrCat(owner.ToString(), "/", number, ".", generation);
}

absl::StatusOr<MemoryId> NewMemoryId() {
  ASSIGN_OR_RETURN(const OwnerId owner, ThisOwner());
  // Not a count, by which who has seen one would know the others.
  std::array<std::uint8_t, 8> drawn{};
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(drawn)));
  const auto number = platform::WireReader(drawn).Take<std::uint64_t>();
  return MemoryId{owner, number, 1};
}

}  // namespace vmm
