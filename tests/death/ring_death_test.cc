// Misuse of rings: a broken REQUIRES ends the program with a line that says so.
#include <gtest/gtest.h>

#include "tests/ipc/ring_both_sides.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "vmm/memory/device.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

TEST(RingDeathTest, AHomeGoesAfterItsWriters) {
  EXPECT_DEATH(
      {
        const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
        const PrimaryContext context = Must(PrimaryContext::Retain(device));
        const CurrentContext current = Must(context.MakeCurrent());
        RingSides sides = Must(
            OpenBothSides(device, {}, {.buffers = 1, .bytes = 4096}, Late()));
        sides.home.reset();
      },
      "a RingHome is destroyed while RingWriters of it live; destroy them "
      "first");
}

}  // namespace
}  // namespace vmm::testing
