// The driver under test, itself refused no memory of the host: what it does then
// is another matter. For those that link vmmshare_test_refused_memory.
#ifndef VMMSHARE_TESTS_GPU_SPARED_DRIVER_H_
#define VMMSHARE_TESTS_GPU_SPARED_DRIVER_H_

#include <cuda.h>

#include <type_traits>
#include <utility>

#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/support/refused_memory.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {

// An entry of it.
template <auto kMember,
          typename Entry =
              std::remove_cvref_t<decltype(TestDriver().table().*kMember)>>
struct Spared;
template <auto kMember, typename Result, typename... Args>
struct Spared<kMember, Result(CUDAAPI*)(Args...)> {
  static Result CUDAAPI Call(Args... args) {
    const Refusal ours = std::exchange(refusal, {});
    const Result result = (TestDriver().table().*kMember)(args...);
    refusal = ours;
    return result;
  }
};

inline platform::Driver SparedDriver() {
  platform::DriverTable table = TestDriver().table();
  platform::ForEachDriverEntry([&table](auto entry) {
    auto& its = table.*(entry.kMember);
    if (its != nullptr) its = &Spared<entry.kMember>::Call;
  });
  return ChangedDriver(table);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_SPARED_DRIVER_H_
