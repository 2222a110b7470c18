// What is no regular file is no safetensors file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "tests/support/private_directory.h"
#include "vmm/weights/manifest.h"

namespace vmm::testing {
namespace {

TEST(SafetensorsTest, AFifoIsRefusedWithoutReadingIt) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const std::string& one : {path, std::string("/dev/zero")}) {
    const absl::Status status = ReadSafetensorsHeader(one).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("the file has 0"));
  }
}

}  // namespace
}  // namespace vmm::testing
