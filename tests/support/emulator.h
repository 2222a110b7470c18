// Programs of another architecture than the machine's.
#ifndef VMMSHARE_TESTS_SUPPORT_EMULATOR_H_
#define VMMSHARE_TESTS_SUPPORT_EMULATOR_H_

#include <cstdlib>
#include <string>
#include <vector>

namespace vmm::testing {

// Whether the tests run under an emulator that the kernel does not know, so
// that no program can be started without it: $VMMSHARE_TEST_EMULATOR.
inline bool IsEmulated() {
  return std::getenv("VMMSHARE_TEST_EMULATOR") != nullptr;
}

// The words with which `program` is started.
inline std::vector<std::string> CommandFor(const std::string& program) {
  const char* emulator = std::getenv("VMMSHARE_TEST_EMULATOR");
  if (emulator == nullptr) return {program};
  return {emulator, program};
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_EMULATOR_H_
