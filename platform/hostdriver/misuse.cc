#include "platform/hostdriver/misuse.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace vmm::hostdriver {

void Stop(const std::string& text) {
  std::fprintf(stderr, "vmmshare host-memory driver: %s\n", text.c_str());
  std::abort();
}

std::string Hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%" PRIx64, value);
  return text;
}

}  // namespace vmm::hostdriver
