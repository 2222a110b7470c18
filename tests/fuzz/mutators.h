// Changes of an input that know its format: what comes out is nearly what the code
// accepts, and so reaches what lies behind the first checks.
//
// libFuzzer takes turns between them and its own (entry_fuzzer.cc), and so does the
// ordinary test run (corpus_test.cc).
#ifndef VMMSHARE_TESTS_FUZZ_MUTATORS_H_
#define VMMSHARE_TESTS_FUZZ_MUTATORS_H_

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/entries.h"

namespace vmm::fuzz {

// splitmix64: the same numbers on every machine.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 where `limit` is 0.
  std::size_t Below(std::size_t limit) {
    return limit == 0 ? 0 : static_cast<std::size_t>(Next() % limit);
  }

 private:
  std::uint64_t state_;
};

// The manifest of a tensor set: a field becomes another number, or a tensor or an
// entry of the metadata is left out, doubled, or trades places, with the counts put
// right. Length and checksum are right afterwards. What is no manifest at all comes
// out as it was.
Bytes MutateManifest(Input input, Numbers& numbers);

// The header of a safetensors file behind two bytes: a token is left out, doubled,
// trades places with another one, or becomes another number, text or bracket.
Bytes MutateSafetensors(Input input, Numbers& numbers);

// Two bytes, then operations of four each: one is left out, doubled, trades places
// with another one, or has another argument.
Bytes MutateOperations(Input input, Numbers& numbers);

}  // namespace vmm::fuzz

#endif  // VMMSHARE_TESTS_FUZZ_MUTATORS_H_
