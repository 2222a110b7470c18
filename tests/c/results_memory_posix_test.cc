// Calls of the C interface that the host has no memory for, at whatever they ask for
// some: of several results there are all or none, and what was lent stays open.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "platform/base/check.h"
#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/refused_memory.h"
#include "tests/support/test_driver.h"
#include "vmm/c/vmmshare.h"

namespace vmm::testing {
namespace {

constexpr std::int64_t kLate = 30'000'000'000;  // Nanoseconds.

void Must(vmmshare_status status) {
  platform::Check(status == VMMSHARE_OK, "a call of the C interface failed");
}

class CResultsMemory : public ::testing::Test {
 protected:
  CResultsMemory() {
    Must(vmmshare_driver_load(HostDriverPath().c_str(), &driver_, nullptr));
    Must(vmmshare_device_open(driver_, 0, &device_, nullptr));
  }
  ~CResultsMemory() override {
    vmmshare_device_close(device_);
    vmmshare_driver_close(driver_);
  }
  vmmshare_memory* Make() const {
    vmmshare_memory_options options = {};
    options.struct_size = sizeof(options);
    options.size = 4096;
    vmmshare_memory* memory = nullptr;
    Must(vmmshare_memory_create(device_, &options, &memory, nullptr));
    return memory;
  }

  vmmshare_driver* driver_ = nullptr;
  vmmshare_device* device_ = nullptr;
};

TEST_F(CResultsMemory, OfMemoryThatIsReceivedThereIsAllOrNone) {
  const std::array<vmmshare_memory*, 2> sent = {Make(), Make()};
  for (long granted = 0;; ++granted) {
    SCOPED_TRACE(granted);
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    std::array<vmmshare_channel*, 2> channels{};
    for (std::size_t i = 0; i < 2; ++i) {
      Must(vmmshare_channel_adopt(ends[i], &channels[i], nullptr));
    }
    std::thread sender([&] {
      vmmshare_channel_send_memory(channels[0], sent.data(), 2, kLate, nullptr);
    });
    std::array<vmmshare_memory*, 2> came{};
    refusal = {.granted_first = granted};
    const vmmshare_status status = vmmshare_channel_receive_memory(
        channels[1], driver_, nullptr, 2, kLate, came.data(), nullptr);
    const bool was_refused = refusal.happened;
    refusal = {};
    if (status != VMMSHARE_OK) {
      EXPECT_EQ(came[0], nullptr);
      EXPECT_EQ(came[1], nullptr);
    }
    for (vmmshare_memory* const each : came) vmmshare_memory_close(each);
    vmmshare_channel_close(channels[1]);
    sender.join();
    vmmshare_channel_close(channels[0]);
    if (was_refused) continue;
    EXPECT_EQ(status, VMMSHARE_OK);
    break;
  }
  for (vmmshare_memory* const each : sent) vmmshare_memory_close(each);
}

TEST_F(CResultsMemory, AHandleThatCannotBeDuplicatedStaysTheCallers) {
  vmmshare_memory* const memory = Make();
  vmmshare_raw_handle raw;
  Must(
      vmmshare_memory_export(memory, 0, VMMSHARE_KIND_POSIX_FD, &raw, nullptr));
  for (long granted = 0;; ++granted) {
    vmmshare_memory* imported = nullptr;
    vmmshare_status status = VMMSHARE_OK;
    bool was_refused = false;
    {
      const DescriptorLimit limit(0);
      refusal = {.granted_first = granted};
      status = vmmshare_memory_import(device_, &raw, 1, 0, 0, nullptr,
                                      &imported, nullptr);
      was_refused = refusal.happened;
      refusal = {};
    }
    EXPECT_EQ(status, VMMSHARE_RESOURCE_EXHAUSTED);
    EXPECT_EQ(imported, nullptr);
    ASSERT_NE(::fcntl(static_cast<int>(raw.os_handle), F_GETFD), -1)
        << "closed, where request " << granted << " for memory was refused";
    if (!was_refused) break;
  }
  EXPECT_EQ(::close(static_cast<int>(raw.os_handle)), 0);
  vmmshare_memory_close(memory);
}

TEST_F(CResultsMemory, NothingThatPyTorchTakesOfARegionIsLost) {
  vmmshare_region* region = nullptr;
  Must(vmmshare_region_create(device_, &region, nullptr));
  Must(vmmshare_torch_set_region(0, region, nullptr));
  // From now on the driver knows what the device holds, and looks for it no more,
  // which takes more memory than can be refused piece by piece.
  vmmshare_memory* const first = Make();
  const auto allocations = [&] {
    vmmshare_region_statistics now = {};
    now.struct_size = sizeof(now);
    Must(vmmshare_region_get_statistics(region, &now, nullptr));
    return now.allocations;
  };
  bool was_refused = true;
  for (long granted = 0; was_refused; ++granted) {
    SCOPED_TRACE(granted);
    refusal = {.granted_first = granted};
    void* const memory = vmmshare_torch_region_alloc(4096, 0, nullptr);
    was_refused = refusal.happened;
    refusal = {};
    ASSERT_EQ(allocations(), memory == nullptr ? 0 : 1);
    vmmshare_torch_region_free(memory, 4096, 0, nullptr);
    ASSERT_EQ(allocations(), 0);
  }
  Must(vmmshare_torch_set_region(0, nullptr, nullptr));
  vmmshare_region_close(region);
  vmmshare_memory_close(first);
}

}  // namespace
}  // namespace vmm::testing
