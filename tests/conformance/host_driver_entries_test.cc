// Each call of the host-memory driver, with all arguments zero: before cuInit, where
// no context is current, and where one is. What a real driver says there differs from
// call to call, and is in the conformance suite where vmmshare depends on it; here
// it is that none is forgotten.
#include <set>
#include <string>
#include <vector>

#include "platform/cuda/driver_table.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using Names = std::set<std::string>;

template <typename... Args>
CUresult CallWithZeros(CUresult(CUDAAPI* function)(Args...)) {
  return function(Args{}...);
}

// Calls each function that the driver has but those in `left_out`; returns those
// with a result for which `is_so`.
template <typename IsSo>
Names CallEach(const platform::DriverTable& cu, const Names& left_out,
               IsSo is_so) {
  Names found;
  platform::ForEachDriverEntry([&]<auto Member>(
      platform::DriverEntry<Member> entry) {
    if (left_out.count(entry.name) != 0 || cu.*Member == nullptr) return;
    if (is_so(CallWithZeros(cu.*Member))) found.insert(entry.name);
  });
  return found;
}

void ExpectNames(Checks& checks, const Names& names, const Names& expected) {
  for (const std::string& name : names) {
    checks.ExpectTrue((name + " not among them").c_str(),
                      expected.count(name) != 0);
  }
  for (const std::string& name : expected) {
    checks.ExpectTrue((name + " among them").c_str(), names.count(name) != 0);
  }
}

bool Succeeded(CUresult result) { return result == CUDA_SUCCESS; }

int ZerosBeforeInit(const std::vector<std::string>&) {
  Checks checks;
  // These say what they say without a driver.
  const Names left_out = {"cuInit", "cuDriverGetVersion", "cuGetErrorName",
                          "cuGetErrorString", "cuGetProcAddress"};
  const platform::DriverTable cu = UninitialisedDriver();
  ExpectNames(checks,
              CallEach(cu, left_out,
                       [](CUresult result) {
                         return result != CUDA_ERROR_NOT_INITIALIZED;
                       }),
              {});
  checks.ExpectTrue("more than 80 calls", CallEach(cu, left_out, [](CUresult) {
                                            return true;
                                          }).size() > 80);
  return checks.failures();
}
const bool kZerosBeforeInit =
    RegisterChild("zeros_before_init", &ZerosBeforeInit);

TEST(HostDriverEntries, ThatNeedADriverSayBeforeInitThatThereIsNone) {
  EXPECT_EQ(Child::Start("zeros_before_init", {}).Wait(), 0);
}

int ZerosWithoutContext(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  // To these, zeros are nothing to do.
  ExpectNames(checks, CallEach(cu, {"cuInit"}, Succeeded),
              {"cuCtxSetCurrent", "cuMemFree", "cuMemFreeHost"});
  return checks.failures();
}
const bool kZerosWithoutContext =
    RegisterChild("zeros_without_context", &ZerosWithoutContext);

TEST(HostDriverEntries, RefuseZerosWhereNoContextIsCurrent) {
  EXPECT_EQ(Child::Start("zeros_without_context", {}).Wait(), 0);
}

int ZerosInContext(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  // Of these, zeros would leave the rest without a context.
  const Names left_out = {"cuInit", "cuCtxPopCurrent", "cuCtxSetCurrent",
                          "cuDevicePrimaryCtxRelease"};
  // No bytes, and the default stream.
  ExpectNames(
      checks, CallEach(cu, left_out, Succeeded),
      {"cuCtxSynchronize", "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost",
       "cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync",
       "cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemsetD32", "cuMemsetD32Async",
       "cuMemsetD8", "cuMemsetD8Async", "cuStreamQuery",
       "cuStreamSynchronize"});
  CUcontext current = nullptr;
  checks.Expect("cuCtxGetCurrent", cu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
  checks.ExpectTrue("the context is still current", current != nullptr);
  return checks.failures();
}
const bool kZerosInContext = RegisterChild("zeros_in_context", &ZerosInContext);

TEST(HostDriverEntries, RefuseZerosInAContextButWhereThatIsNothingToDo) {
  EXPECT_EQ(Child::Start("zeros_in_context", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
