#include <windows.h>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/zeroed_pages.h"

namespace vmm::platform {

void ZeroedPagesTraits::Close(Value value) {
  Check(::VirtualFree(value.data(), 0, MEM_RELEASE) != 0,
        "VirtualFree() refused pages that were mapped");
}

absl::StatusOr<ZeroedPages> MapZeroedPages(std::size_t size) {
  void* const at =
      ::VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (at == nullptr) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("VirtualAlloc(", size, " bytes)"));
  }
  return ZeroedPages::Adopt({static_cast<std::uint8_t*>(at), size});
}

// PrefetchVirtualMemory() reads from files and makes no new pages.
void PopulatePages(absl::Span<std::uint8_t> /*bytes*/) {}

}  // namespace vmm::platform
