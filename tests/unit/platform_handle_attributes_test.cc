// What the driver is told of who may use handles: of which structure it is. On
// Windows the two calls want different ones, and crash with the other.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "platform/cuda/handle_attributes.h"
#include "platform/os/os_handle.h"
#include "tests/support/must.h"

namespace vmm::platform {
namespace {

using testing::Must;

// SECURITY_ATTRIBUTES and OBJECT_ATTRIBUTES of Windows.
struct OfPool {
  std::uint32_t size;
  void* descriptor;
  std::int32_t inherit;
};
struct OfMemory {
  std::uint32_t size;
  void* root;
  void* name;
  std::uint32_t flags;
  void* descriptor;
  void* quality;
};

TEST(HandleAttributes, APoolsAreSecurityAttributesAndMemorysAreAnObjects) {
  void* const of_pool = Must(NativePoolAttributes());
  void* const of_memory = Must(NativeHandleAttributes());
  if (kNativeHandleIsPosixFd) {
    EXPECT_EQ(of_pool, nullptr);
    EXPECT_EQ(of_memory, nullptr);
    return;
  }
  OfPool pool{};
  std::memcpy(&pool, of_pool, sizeof(pool));
  OfMemory memory{};
  std::memcpy(&memory, of_memory, sizeof(memory));
  EXPECT_EQ(pool.size, sizeof(OfPool));
  EXPECT_EQ(memory.size, sizeof(OfMemory));
  EXPECT_EQ(pool.inherit, 0);
  EXPECT_EQ(memory.root, nullptr);
  // Both name the same users.
  EXPECT_NE(pool.descriptor, nullptr);
  EXPECT_EQ(pool.descriptor, memory.descriptor);
}

}  // namespace
}  // namespace vmm::platform
