#include "vmm/memory_id.h"

#include <atomic>
#include <mutex>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/machine.h"

namespace vmm {
namespace {

// Not a static initialised by a lambda: drawing may fail, and is tried again.
absl::StatusOr<OwnerId> ThisOwner() {
  static std::mutex mutex;
  static std::optional<OwnerId> owner;
  std::lock_guard<std::mutex> lock(mutex);
  if (!owner.has_value()) {
    OwnerId drawn;
    absl::Status status = platform::FillRandom(absl::MakeSpan(drawn.bytes));
    if (!status.ok()) return status;
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
  static std::atomic<std::uint64_t> next{1};
  absl::StatusOr<OwnerId> owner = ThisOwner();
  if (!owner.ok()) return owner.status();
  return MemoryId{*owner, next.fetch_add(1), 1};
}

}  // namespace vmm
