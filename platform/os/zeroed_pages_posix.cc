#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/map_error_posix.h"
#include "platform/os/zeroed_pages.h"

namespace vmm::platform {
namespace {

// MADV_POPULATE_WRITE, which C libraries before 2.35 do not name.
constexpr int kPopulateWrite = 23;

}  // namespace

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
    const LastError error;
    return MapError(error, absl::StrCat("mmap(", size, " bytes)"));
  }
  return ZeroedPages::Adopt({static_cast<std::uint8_t*>(at), size});
}

void PopulatePages(absl::Span<std::uint8_t> bytes) {
  if (bytes.empty()) return;
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t from = begin / page * page;
  const std::uintptr_t size = begin + bytes.size() - from;
  // Refused by kernels that do not know it: a hint, as the header says.
  (void)::madvise(reinterpret_cast<void*>(from), size, kPopulateWrite);
}

}  // namespace vmm::platform
