#include <sys/mman.h>

#include "platform/os/large_pages.h"

namespace vmm::platform {

void AdviseLargePages(void* at, std::size_t size) {
  // A kernel without large pages says EINVAL; nothing is lost by it.
  static_cast<void>(madvise(at, size, MADV_HUGEPAGE));
}

}  // namespace vmm::platform
