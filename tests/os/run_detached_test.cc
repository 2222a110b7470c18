// Work that nobody waits for.
#include "platform/os/run_detached.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace vmm::platform {
namespace {

TEST(RunDetachedTest, RunsItsBodyOnAThreadOfItsOwn) {
  const auto ran = std::make_shared<std::promise<std::thread::id>>();
  std::future<std::thread::id> where = ran->get_future();
  ASSERT_TRUE(RunDetached(
      "vmmshare-test", [ran] { ran->set_value(std::this_thread::get_id()); }));
  ASSERT_EQ(where.wait_for(std::chrono::seconds(60)),
            std::future_status::ready);
  EXPECT_NE(where.get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace vmm::platform
