// Tests as clients of MPS, where what one process does to a GPU can end the
// contexts of all others.
#ifndef VMMSHARE_TESTS_SUPPORT_MPS_H_
#define VMMSHARE_TESTS_SUPPORT_MPS_H_

#include "tests/support/test_driver.h"

namespace vmm::testing {

// Whether this process is a client of MPS on the first device of TestDriver().
inline bool UnderMps() {
  // CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack; a driver that
  // does not know it answers an error.
  constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);
  int value = 0;
  return TestDriver()->cuDeviceGetAttribute(&value, kMpsEnabled, 0) ==
             CUDA_SUCCESS &&
         value != 0;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_MPS_H_
