// The driver that driver tests run on.
//
// VMMSHARE_TEST_DRIVER=host (the default) is the host-memory driver, =system
// the installed NVIDIA driver. The choice is explicit: a machine with a GPU
// does not silently change what a test run means.
#ifndef VMMSHARE_TESTS_SUPPORT_TEST_DRIVER_H_
#define VMMSHARE_TESTS_SUPPORT_TEST_DRIVER_H_

#include <string>

#include "platform/cuda/driver.h"

namespace vmm::testing {

// The driver under test, loaded once. Ends the program when it cannot load.
const platform::Driver& TestDriver();

// Whether TestDriver() is (will be) the host-memory driver.
bool OnHostMemoryDriver();

// The host-memory driver's file: $VMMSHARE_HOSTDRIVER, else the one built
// beside the tests.
std::string HostDriverPath();

// Gives this process and its children a host-memory machine of their own, with
// budgets that no test beside it takes from; an instance already chosen stays.
// REQUIRES: the driver is not loaded yet.
void UseAHostInstanceOfOwn();

// Gives this process and its children a directory of their own for what listens
// at no place that was named, where systems have such.
void UseAChannelDirectoryOfOwn();

// Chooses the host-memory driver for this process and its children, whatever
// the environment says. Call before TestDriver().
void UseTheHostMemoryDriver();

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_TEST_DRIVER_H_
