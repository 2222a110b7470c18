#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/zeroed_pages.h"

namespace vmm::platform {

void ZeroedPagesTraits::Close(Value value) {
  // ENOMEM: they border on others' pages, and the kernel has no room to note the
  // split. They stay mapped, as does the program's memory.
  Check(::munmap(value.data(), value.size()) == 0 || errno == ENOMEM,
        "munmap() refused pages that were mapped");
}

absl::StatusOr<ZeroedPages> MapZeroedPages(std::size_t size) {
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return OsError(errno, absl::StrCat("mmap(", size, " bytes)"));
  }
  return ZeroedPages::Adopt({static_cast<std::uint8_t*>(at), size});
}

}  // namespace vmm::platform
