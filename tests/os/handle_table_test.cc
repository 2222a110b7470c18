#include "platform/os/handle_table.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/child.h"

namespace vmm::platform {
namespace {

// Descriptors that the table has room for.
int Room() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("FDSize:", 0) == 0) return std::stoi(line.substr(7));
  }
  return -1;
}

int Open() {
  int count = 0;
  DIR* const all = ::opendir("/proc/self/fd");
  while (::readdir(all) != nullptr) ++count;
  ::closedir(all);
  return count;
}

int Grow(const std::vector<std::string>& args) {
  if (Room() >= 4096) return 1;  // Its table has what it needs.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  if (!args.empty()) limit.rlim_cur = 100;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  const int before = Open();
  GrowHandleTable();
  if (Open() != before) return 4;
  return !args.empty() || limit.rlim_cur < 4096 || Room() >= 4096 ? 0 : 5;
}
const bool kGrow = testing::RegisterChild("grow the table", &Grow);

TEST(HandleTable, HasRoomAfterwardsAndNothingIsLeftOpen) {
  EXPECT_TRUE(kGrow);
  EXPECT_EQ(testing::Child::Start("grow the table", {}).Wait(), 0);
}

TEST(HandleTable, GrowsWithinTheLimitOfTheProcess) {
  EXPECT_EQ(testing::Child::Start("grow the table", {"a low limit"}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::platform
