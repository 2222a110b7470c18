#include "platform/os/thread_value.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/os/unload.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

// What the ends of threads were called with.
std::atomic<int> ends = 0;

struct Counted {
  int number = 0;
};

const ThreadValue& Value() {
  static const ThreadValue value(
      [](void* ended) { ends += static_cast<Counted*>(ended)->number; });
  return value;
}

TEST(ThreadValue, IsNullBeforeItIsSet) {
  std::thread([] { EXPECT_EQ(Value().Get(), nullptr); }).join();
}

TEST(ThreadValue, IsEachThreadsOwn) {
  Counted first{.number = 0};
  Counted second{.number = 0};
  std::thread([&] {
    ASSERT_TRUE(Value().Set(&first));
    std::thread([&] {
      ASSERT_TRUE(Value().Set(&second));
      EXPECT_EQ(Value().Get(), &second);
    }).join();
    EXPECT_EQ(Value().Get(), &first);
  }).join();
}

TEST(ThreadValue, IsHandedToTheFunctionWhenItsThreadHasEnded) {
  Counted counted{.number = 7};
  ends = 0;
  std::thread([&] {
    ASSERT_TRUE(Value().Set(&counted));
    EXPECT_EQ(ends, 0);
  }).join();
  EXPECT_EQ(ends, 7);
}

TEST(ThreadValue, ThatIsNullAgainIsNotHandedOver) {
  Counted counted{.number = 7};
  ends = 0;
  std::thread([&] {
    ASSERT_TRUE(Value().Set(&counted));
    ASSERT_TRUE(Value().Set(nullptr));
  }).join();
  EXPECT_EQ(ends, 0);
}

// A thread_local object's memory may be gone in its destructor
// (thread_value.h): what a value points to is still there.
TEST(ThreadValue, PointsToWhatIsStillThereWhenManyThreadsEnd) {
  constexpr int kThreads = 64;
  ends = 0;
  for (int i = 0; i < kThreads; ++i) {
    Counted counted{.number = 1};
    std::thread([&] { ASSERT_TRUE(Value().Set(&counted)); }).join();
  }
  EXPECT_EQ(ends, kThreads);
}

// Ends with a value, of which nobody may hear any more.
int EndsWithAValue(const std::vector<std::string>& /*args*/) {
  static int something = 0;
  static const ThreadValue value([](void*) { testing::KillThisProcess(); });
  return value.Set(&something) ? 0 : 1;
}
const bool kEndsWithAValue =
    testing::RegisterChild("ends_with_a_value", &EndsWithAValue);

// Windows has ended all other threads by then, also who held a lock.
TEST(ThreadValue, OfTheThreadThatEndsTheProcessIsNotHandedOver) {
  EXPECT_EQ(testing::Child::Start("ends_with_a_value", {}).Wait(), 0);
}

// A plugin, or a DLL of a program's, that contains vmmshare.
TEST(ThreadValue, OfALibraryThatIsLetGoIsHandedOverAllTheSame) {
  ends = 0;
  std::thread([] {
    void* const library = testing::Load(VMMSHARE_TEST_UNLOADED);
    ASSERT_NE(library, nullptr) << VMMSHARE_TEST_UNLOADED;
    const auto count_end = reinterpret_cast<bool (*)(std::atomic<int>*)>(
        testing::Find(library, "vmmshare_test_count_end"));
    ASSERT_NE(count_end, nullptr);
    ASSERT_TRUE(count_end(&ends));
    testing::Unload(library);
  }).join();
  EXPECT_EQ(ends, 1);
}

// A function that a program wrote into memory, as a just-in-time compiler does.
TEST(ThreadValue, OfAFunctionInNoLibraryIsEachThreadsOwnToo) {
  Counted counted{.number = 7};
  auto* const no_library = new char(0);
  const ThreadValue value(reinterpret_cast<void (*)(void*)>(no_library));
  ASSERT_TRUE(value.Set(&counted));
  EXPECT_EQ(value.Get(), &counted);
  std::thread([&] { EXPECT_EQ(value.Get(), nullptr); }).join();
  // Or it would be called when this thread ends.
  ASSERT_TRUE(value.Set(nullptr));
  delete no_library;
}

// The last test: it takes all that there are.
TEST(ThreadValue, KeepsNothingWhereTheSystemHasNoRoomForAnother) {
  constexpr int kMoreThanAnySystemHas = 100000;
  Counted counted{.number = 7};
  ends = 0;
  bool refused = false;
  std::thread([&] {
    for (int i = 0; i < kMoreThanAnySystemHas && !refused; ++i) {
      const ThreadValue value([](void*) { ends += 1; });
      refused = !value.Set(&counted);
      ASSERT_EQ(value.Get(), refused ? nullptr : &counted);
      ASSERT_TRUE(refused || value.Set(nullptr));
    }
  }).join();
  EXPECT_TRUE(refused);
  EXPECT_EQ(ends, 0);
}

}  // namespace
}  // namespace vmm::platform
