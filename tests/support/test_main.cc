#include <gtest/gtest.h>

#include <chrono>

#include "platform/ipc/lifeline.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/test_driver.h"

int main(int argc, char** argv) {
  // Longer than any machine is busy for: in children as well. Tests of those who
  // let nobody know set it back: support/lifeline_patience.h.
  vmm::platform::internal::SetLifelinePatience(std::chrono::seconds(20));
  if (const int status = vmm::testing::RunAsChild(argc, argv); status >= 0) {
    return status;
  }
  vmm::testing::UseAHostInstanceOfOwn();
  ::testing::InitGoogleTest(&argc, argv);
  // Death tests run in a fresh process: a driver does not survive a fork. But
  // no program starts itself again under an emulator without its help.
  GTEST_FLAG_SET(death_test_style,
                 vmm::testing::IsEmulated() ? "fast" : "threadsafe");
  return RUN_ALL_TESTS();
}
