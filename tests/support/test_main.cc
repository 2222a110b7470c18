#include <gtest/gtest.h>

#include "tests/support/child.h"
#include "tests/support/test_driver.h"

int main(int argc, char** argv) {
  if (const int status = vmm::testing::RunAsChild(argc, argv); status >= 0) {
    return status;
  }
  vmm::testing::UseAHostInstanceOfOwn();
  ::testing::InitGoogleTest(&argc, argv);
  // Death tests run in a fresh process: a driver does not survive a fork.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  return RUN_ALL_TESTS();
}
