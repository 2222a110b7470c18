// The entry named by VMMSHARE_FUZZ_ENTRY, for libFuzzer.
#include <cstddef>
#include <cstdint>

#include "platform/base/check.h"
#include "tests/fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  static void (*const run)(vmm::fuzz::Input) = [] {
    for (const vmm::fuzz::Entry& entry : vmm::fuzz::Entries()) {
      if (entry.name == VMMSHARE_FUZZ_ENTRY) return entry.run;
    }
    vmm::platform::Die("no fuzz entry " VMMSHARE_FUZZ_ENTRY);
  }();
  run({data, size});
  return 0;
}
