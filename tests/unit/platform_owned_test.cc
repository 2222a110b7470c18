#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <type_traits>
#include <utility>

#include "platform/base/owned.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {
namespace {

// One ledger of what is open, for each kind of handle under test.
template <typename Traits>
std::multiset<typename Traits::Value>& Open() {
  static std::multiset<typename Traits::Value> open;
  return open;
}

// Like a descriptor: -1 is nothing, and 0 is something.
struct NumberTraits {
  using Value = int;
  static Value Nothing() { return -1; }
  static bool Holds(Value value) { return value >= 0; }
  static void Close(Value value) {
    EXPECT_EQ(Open<NumberTraits>().erase(value), 1u) << "closed twice";
  }
  static Value Make(int i) { return *Open<NumberTraits>().insert(i); }
};

// Like a driver's handle: 0 is nothing, and there is no smallest number.
struct DriverTraits {
  using Value = std::uint64_t;
  static Value Nothing() { return 0; }
  static bool Holds(Value value) { return value != 0; }
  static void Close(Value value) {
    EXPECT_EQ(Open<DriverTraits>().erase(value), 1u) << "closed twice";
  }
  static Value Make(int i) {
    return *Open<DriverTraits>().insert(~std::uint64_t{0} - i);
  }
};

// Like an address range: a pointer and its size together.
struct RangeTraits {
  using Value = std::pair<const void*, std::size_t>;
  static Value Nothing() { return {nullptr, 0}; }
  static bool Holds(const Value& value) { return value.second != 0; }
  static void Close(const Value& value) {
    EXPECT_EQ(Open<RangeTraits>().erase(value), 1u) << "closed twice";
  }
  static Value Make(int i) {
    return *Open<RangeTraits>().insert({nullptr, static_cast<size_t>(i) + 1});
  }
};

template <typename Traits>
class OwnedTest : public ::testing::Test {
 protected:
  using Handle = Owned<Traits>;
  ~OwnedTest() override { EXPECT_TRUE(Open<Traits>().empty()); }
  Handle Make(int i) { return Handle::Adopt(Traits::Make(i)); }
  std::size_t open() const { return Open<Traits>().size(); }
};

using AllTraits = ::testing::Types<NumberTraits, DriverTraits, RangeTraits>;
TYPED_TEST_SUITE(OwnedTest, AllTraits);

TYPED_TEST(OwnedTest, OwnsNothingAtFirst) {
  typename TestFixture::Handle handle;
  EXPECT_FALSE(handle.has_value());
  EXPECT_EQ(handle.get(), TypeParam::Nothing());
}

TYPED_TEST(OwnedTest, ClosesOnceWhenDestroyed) {
  {
    auto handle = this->Make(0);
    EXPECT_TRUE(handle.has_value());
    EXPECT_EQ(this->open(), 1u);
  }
  EXPECT_EQ(this->open(), 0u);
}

TYPED_TEST(OwnedTest, ResetClosesAndMayBeRepeated) {
  auto handle = this->Make(1);
  handle.Reset();
  EXPECT_FALSE(handle.has_value());
  EXPECT_EQ(this->open(), 0u);
  handle.Reset();
}

TYPED_TEST(OwnedTest, MovingLeavesTheSourceEmpty) {
  auto source = this->Make(0);
  auto target = std::move(source);
  EXPECT_FALSE(source.has_value());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(target.has_value());
  EXPECT_EQ(this->open(), 1u);
}

TYPED_TEST(OwnedTest, MoveAssignmentOverALiveOneClosesIt) {
  auto target = this->Make(0);
  auto source = this->Make(1);
  const auto value = source.get();
  target = std::move(source);
  EXPECT_EQ(this->open(), 1u);
  EXPECT_EQ(target.get(), value);
  EXPECT_FALSE(source.has_value());  // NOLINT(bugprone-use-after-move)
}

TYPED_TEST(OwnedTest, MoveAssignmentOfAnEmptyOneCloses) {
  auto target = this->Make(0);
  target = typename TestFixture::Handle();
  EXPECT_FALSE(target.has_value());
  EXPECT_EQ(this->open(), 0u);
}

TYPED_TEST(OwnedTest, SelfMoveKeepsWhatIsOwned) {
  auto handle = this->Make(0);
  auto& same = handle;
  handle = std::move(same);
  EXPECT_TRUE(handle.has_value());
  EXPECT_EQ(this->open(), 1u);
}

TYPED_TEST(OwnedTest, RelinquishGivesUpOwnership) {
  auto handle = this->Make(0);
  const auto value = std::move(handle).Relinquish();
  EXPECT_FALSE(handle.has_value());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(this->open(), 1u);
  TypeParam::Close(value);
}

TYPED_TEST(OwnedTest, NeitherCopiesNorConverts) {
  using H = typename TestFixture::Handle;
  static_assert(!std::is_copy_constructible_v<H>);
  static_assert(!std::is_copy_assignable_v<H>);
  static_assert(!std::is_convertible_v<typename H::Value, H>);
  static_assert(!std::is_constructible_v<H, typename H::Value>);
  static_assert(!std::is_convertible_v<H, typename H::Value>);
  static_assert(!std::is_convertible_v<H, bool>);
  static_assert(std::is_nothrow_move_constructible_v<H>);
}

// A Close that looks at the owner it came from must find it empty.
struct ReentrantTraits {
  using Value = int;
  static inline Owned<ReentrantTraits>* owner = nullptr;
  static inline int closed = 0;
  static Value Nothing() { return 0; }
  static bool Holds(Value value) { return value != 0; }
  static void Close(Value) {
    ++closed;
    owner->Reset();
  }
};

TEST(Owned, ACloseThatReentersDoesNotCloseTwice) {
  auto handle = Owned<ReentrantTraits>::Adopt(7);
  // cppcheck-suppress danglingLifetime  // Nothing closes after this test.
  ReentrantTraits::owner = &handle;
  handle.Reset();
  EXPECT_EQ(ReentrantTraits::closed, 1);
}

TEST(OsHandleTraits, HoldsEveryIntFromZeroOn) {
  EXPECT_TRUE(OsHandleTraits::Holds(0));
  EXPECT_TRUE(OsHandleTraits::Holds(1 << 20));
  EXPECT_FALSE(OsHandleTraits::Holds(-1));
  EXPECT_FALSE(OsHandleTraits::Holds(-2));
  EXPECT_FALSE(OsHandleTraits::Holds((std::intptr_t{1} << 32) + 5));
}

}  // namespace
}  // namespace vmm::platform
