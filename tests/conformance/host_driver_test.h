// For tests of what only the host-memory driver has.
#ifndef VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
#define VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_

#include <initializer_list>

#include "platform/hostdriver/host_driver.h"
#include "platform/hostdriver/host_kernels.h"
#include "tests/conformance/conformance.h"

namespace vmm::testing {

// The functions of host_driver.h, looked up in the library.
struct HostFunctions {
  decltype(&::vmmshareHostDriverVersion) version;
  decltype(&::vmmshareHostLedger) ledger;
  decltype(&::vmmshareHostFail) fail;
  decltype(&::vmmshareHostCalls) calls;
  decltype(&::vmmshareHostAddKernel) add_kernel;
};
const HostFunctions& HostDriver();

VmmshareHostLedger LedgerNow();

// What a call answered, and what it should have: a row of a table of calls.
struct Answer {
  const char* what;
  CUresult got;
  CUresult wanted;
};
inline void ExpectAnswers(std::initializer_list<Answer> answers) {
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.got, answer.wanted) << answer.what;
  }
}

// What the driver's library exports as `name`: how a program that links it
// finds a call. Ends the program where there is none.
void* HostDriverExport(const char* name);
template <typename Function>
Function* FindExport(const char* name) {
  return reinterpret_cast<Function*>(HostDriverExport(name));
}

// A location to ask after.
inline CUmemLocation At(int device,
                        CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
  return Access(kNoAccess, device, type).location;
}

inline constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
// What a module can be made of, and a device that there is not.
inline constexpr char kModuleText[] = ".version 6.4\n.target sm_60\n";
inline constexpr int kNoDevice = 64;

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
