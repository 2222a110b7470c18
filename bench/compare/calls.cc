#include "bench/compare/calls.h"

#include "bench/driver_wrapper.h"

namespace bench::compare {
namespace {

thread_local std::uint64_t calls = 0;

struct CountCall {
  CountCall() { ++calls; }
};

}  // namespace

absl::StatusOr<vmm::platform::Driver> CountingDriver(
    const vmm::platform::Driver& real) {
  return WrappedDriver<CountCall>(real, "counts calls");
}

std::uint64_t DriverCalls() { return calls; }

}  // namespace bench::compare
