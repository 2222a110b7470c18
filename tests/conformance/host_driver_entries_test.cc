// Each call of the host-memory driver, with all arguments zero: before cuInit, where
// no context is current, and where one is. What a real driver says there differs from
// call to call, and is in the conformance suite where vmmshare depends on it; here
// it is that none is forgotten.
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "platform/cuda/driver_table.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using Names = std::set<std::string>;

// What each call is given: zeros; or pointers to zeroed memory, and zeros or ones for
// all else but handles.
enum class Given { kZeros, kZeroedMemory, kOnes };

template <typename Arg>
Arg ArgumentOf(Given given) {
  const bool has_memory = given != Given::kZeros;
  const bool is_ones = given == Given::kOnes;
  if constexpr (std::is_pointer_v<Arg>) {
    // Handles are pointers to types that nobody knows.
    using To = std::remove_pointer_t<Arg>;
    if constexpr (std::is_void_v<To> || requires { sizeof(To); }) {
      static std::array<std::uint64_t, 4096> memory;
      memory.fill(0);
      if (has_memory) return reinterpret_cast<Arg>(memory.data());
    }
  } else if constexpr (std::is_integral_v<Arg> && sizeof(Arg) == 4) {
    // A wider number may be a handle or an address.
    if (is_ones) return static_cast<Arg>(-1);
  }
  // Many enumerations have no zero.
  if constexpr (std::is_enum_v<Arg>) {
    return static_cast<Arg>(std::underlying_type_t<Arg>{});
  } else {
    return Arg{};
  }
}

template <typename... Args>
CUresult Call(CUresult(CUDAAPI* function)(Args...),
              [[maybe_unused]] Given given) {
  return function(ArgumentOf<Args>(given)...);
}

// Calls each function that the driver has but those in `left_out`; returns those
// with a result for which `is_so`.
template <typename IsSo>
Names CallEach(const platform::DriverTable& cu, const Names& left_out,
               IsSo is_so, Given given = Given::kZeros) {
  Names found;
  platform::ForEachDriverEntry([&]<auto Member>(
      platform::DriverEntry<Member> entry) {
    if (left_out.count(entry.name) != 0 || cu.*Member == nullptr) return;
    if (is_so(Call(cu.*Member, given))) found.insert(entry.name);
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

// Given zeros, these would leave those after them without a context.
Names ThatEndTheContext() {
  return {"cuInit", "cuCtxPopCurrent", "cuCtxSetCurrent",
          "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"};
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
              {"cuCtxSetCurrent", "cuDevicePrimaryCtxReset", "cuMemFree",
               "cuMemFreeHost"});
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
  // No bytes, and the default stream.
  ExpectNames(
      checks, CallEach(cu, ThatEndTheContext(), Succeeded),
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

// args: none, or "ones".
int EmptyStructures(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CallEach(cu, ThatEndTheContext(), Succeeded,
           args.empty() ? Given::kZeroedMemory : Given::kOnes);
  // It still does what it did.
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  checks.Expect("synchronize", cu.cuCtxSynchronize(), CUDA_SUCCESS);
  return checks.failures();
}
const bool kEmptyStructures =
    RegisterChild("empty_structures", &EmptyStructures);

TEST(HostDriverEntries, SurviveEmptyStructures) {
  EXPECT_EQ(Child::Start("empty_structures", {}).Wait(), 0);
}

TEST(HostDriverEntries, SurviveFlagsAndNumbersThatThereAreNot) {
  EXPECT_EQ(Child::Start("empty_structures", {"ones"}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
