#include "platform/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace vmm::platform {

void Die(std::string_view message, std::source_location where) {
  std::fprintf(stderr, "vmmshare: %s:%u: %.*s\n", where.file_name(),
               static_cast<unsigned>(where.line()),
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace vmm::platform
