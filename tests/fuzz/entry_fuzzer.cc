// The entry named by VMMSHARE_FUZZ_ENTRY, for libFuzzer.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "tests/fuzz/mutators.h"

// libFuzzer's own mutations, for a mutator that wants some.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size);

namespace {

const vmm::fuzz::Entry& ThisEntry() {
  static const vmm::fuzz::Entry* const entry = [] {
    for (const vmm::fuzz::Entry& each : vmm::fuzz::Entries()) {
      if (each.name == VMMSHARE_FUZZ_ENTRY) return &each;
    }
    vmm::platform::Die("no fuzz entry " VMMSHARE_FUZZ_ENTRY);
  }();
  return *entry;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  ThisEntry().run({data, size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned int seed) {
  vmm::fuzz::Numbers numbers(seed);
  if (ThisEntry().mutate == nullptr || numbers.Below(2) == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const vmm::fuzz::Bytes changed = ThisEntry().mutate({data, size}, numbers);
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}
