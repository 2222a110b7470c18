// For tests of what only the host-memory driver has.
#ifndef VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
#define VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_

#include "platform/hostdriver/host_driver.h"
#include "tests/conformance/conformance.h"

namespace vmm::testing {

// The functions of host_driver.h, looked up in the library.
struct HostFunctions {
  decltype(&::vmmshareHostDriverVersion) version;
  decltype(&::vmmshareHostLedger) ledger;
  decltype(&::vmmshareHostFail) fail;
  decltype(&::vmmshareHostCalls) calls;
};
const HostFunctions& HostDriver();

VmmshareHostLedger LedgerNow();

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_HOST_DRIVER_TEST_H_
