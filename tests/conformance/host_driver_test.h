// For tests of what only the host-memory driver has.
#ifndef VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
#define VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_

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

// What the driver's library exports as `name`: how a program that links it
// finds a call. Ends the program where there is none.
void* HostDriverExport(const char* name);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
