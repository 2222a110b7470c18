#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "platform/ipc/peer_watch.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"
#include "tests/support/must.h"
#include "vmm/share/internal/share_registry.h"

namespace vmm {
namespace {

using testing::Must;

const platform::UserId kOther("4242");
const platform::UserId kThird("4343");

class Nothing : public PeerService {
 public:
  std::string Format(const ShareInvitation&) const override { return ""; }
  absl::Status ServePeer(platform::Channel&, platform::PeerWatch,
                         absl::Duration,
                         const platform::CancelEvent&) override {
    return absl::OkStatus();
  }
  bool Tidy() override { return false; }
};

class ShareRegistryTest : public ::testing::Test {
 protected:
  ShareKey Add(ShareOptions options = {}) {
    return Must(registry_.Add(std::make_shared<Nothing>(), std::move(options)));
  }
  absl::Status Find(const std::vector<ShareKey>& keys,
                    const platform::UserId& user = platform::CurrentUser()) {
    return registry_.Find(keys, user).status();
  }

  ShareRegistry registry_;
};

TEST_F(ShareRegistryTest, KeysAreDrawnAnew) {
  const ShareKey a = Add();
  const ShareKey b = Add();
  EXPECT_NE(a.place, b.place);
  EXPECT_NE(a.secret, b.secret);
}

TEST_F(ShareRegistryTest, AllThatIsAskedForIsFoundInOrderOrNothing) {
  const ShareKey a = Add({.access = Access::kRead});
  const ShareKey b = Add();
  const auto found = Must(registry_.Find({b, a}, platform::CurrentUser()));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].access, Access::kReadWrite);
  EXPECT_EQ(found[1].access, Access::kRead);
  registry_.Remove(a);
  EXPECT_TRUE(absl::IsNotFound(Find({b, a})));
  EXPECT_TRUE(Find({b}).ok());
}

TEST_F(ShareRegistryTest, APlaceWithAnothersSecretOpensNothing) {
  const ShareKey a = Add();
  const ShareKey b = Add();
  EXPECT_TRUE(absl::IsNotFound(Find({{a.place, b.secret}})));
  EXPECT_TRUE(absl::IsNotFound(Find({{a.place, {}}})));
}

TEST_F(ShareRegistryTest, AShareIsForTheUsersThatItNames) {
  const ShareKey all = Add();
  const ShareKey some = Add({.users = {{kOther}}});
  const ShareKey own = Add({.users = std::vector<platform::UserId>()});
  EXPECT_TRUE(Find({all}, kThird).ok());
  EXPECT_TRUE(Find({some}, kOther).ok());
  EXPECT_TRUE(Find({some}).ok());
  EXPECT_TRUE(Find({own}).ok());
  const absl::Status refused = Find({all, some}, kThird);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_TRUE(absl::IsPermissionDenied(Find({own}, kOther)));
  // Without the secret nobody learns that there is something.
  EXPECT_TRUE(absl::IsNotFound(Find({{own.place, {}}}, kThird)));
}

TEST_F(ShareRegistryTest, AShareIsWithdrawnWhereItWasMade) {
  const auto registry = std::make_shared<ShareRegistry>();
  const ShareKey key = Must(registry->Add(std::make_shared<Nothing>(), {}));
  ShareRegistry::Withdraw(registry, key);
  EXPECT_TRUE(absl::IsNotFound(
      registry->Find({key}, platform::CurrentUser()).status()));
}

// Where the thread that held the lock is not there to let go of it.
TEST_F(ShareRegistryTest, AForkedChildWithdrawsNothingAndWaitsForNobody) {
  if (!testing::MayFork()) GTEST_SKIP() << "this system has no fork";
  if (testing::IsEmulated()) GTEST_SKIP() << testing::kForksWithLocks;
  auto registry = std::make_shared<ShareRegistry>();
  const ShareKey key = Must(registry->Add(std::make_shared<Nothing>(), {}));
  std::promise<void> is_held;
  std::promise<void> may_go_on;
  const auto admit = [&](absl::Span<const ShareRegistry::Found>) {
    is_held.set_value();
    may_go_on.get_future().wait();
    return absl::OkStatus();
  };
  const std::future<absl::Status> found = std::async(std::launch::async, [&] {
    return registry->Find({key}, platform::CurrentUser(), admit).status();
  });
  is_held.get_future().wait();
  EXPECT_EQ(testing::RunInFork([&] {
              ShareRegistry::Withdraw(std::move(registry), key);
              return 0;
            }),
            0);
  may_go_on.set_value();
  found.wait();
  EXPECT_TRUE(registry->Find({key}, platform::CurrentUser()).ok());
}

// Or the memory would live for as long as the child does.
TEST_F(ShareRegistryTest, AForkedChildClosesItsHandlesOfMemoryAlone) {
  if (!testing::MayFork()) GTEST_SKIP() << "this system has no fork";
  const auto registry = std::make_shared<ShareRegistry>();
  auto memory = std::make_shared<PublishedMemory>();
  const platform::CancelEvent event = Must(platform::CancelEvent::Create());
  platform::OsHandle handle = Must(platform::Duplicate(event.handle()));
  const auto is_open = [number = handle.get()] {
    platform::OsHandle copy = platform::OsHandle::Adopt(number);
    const bool opens = platform::Duplicate(copy).ok();
    static_cast<void>(std::move(copy).Relinquish());
    return opens;
  };
  memory->handles.emplace_back(std::move(handle));
  const ShareKey key = Must(registry->Add(
      std::shared_ptr<const PublishedMemory>(std::move(memory)), {}));
  const ShareKey other = Must(registry->Add(std::make_shared<Nothing>(), {}));
  EXPECT_TRUE(is_open());
  EXPECT_EQ(testing::RunInFork([&] {
              ShareRegistry::Withdraw(registry, other);
              ShareRegistry::Withdraw(registry, key);
              return is_open() ? 1 : 0;
            }),
            0);
  EXPECT_TRUE(is_open());
  EXPECT_TRUE(registry->Find({key, other}, platform::CurrentUser()).ok());
}

TEST_F(ShareRegistryTest, MemoryThatWasReleasedIsExpectedBack) {
  const auto memory = std::make_shared<const PublishedMemory>();
  const ShareKey key = Must(registry_.Add(memory, {}));
  EXPECT_TRUE(Find({key}).ok());
  EXPECT_EQ(registry_.Exchange(key, nullptr), memory);
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_TRUE(absl::IsResourceExhausted(Find({key})));
  EXPECT_TRUE(absl::IsNotFound(Find({{key.place, {}}})));
  EXPECT_EQ(registry_.Exchange(key, memory), nullptr);
  EXPECT_TRUE(Find({key}).ok());
}

// Or its owner would take it back from all that it knows of, and one more had it.
TEST_F(ShareRegistryTest, NothingIsExchangedBetweenFindingAndAdmitting) {
  const ShareKey key =
      Must(registry_.Add(std::make_shared<const PublishedMemory>(), {}));
  std::future<void> exchanged;
  const auto admit = [&](absl::Span<const ShareRegistry::Found>) {
    exchanged = std::async(std::launch::async,
                           [&] { registry_.Exchange(key, nullptr); });
    EXPECT_EQ(exchanged.wait_for(std::chrono::milliseconds(50)),
              std::future_status::timeout);
    return absl::AbortedError("not admitted");
  };
  EXPECT_TRUE(absl::IsAborted(
      registry_.Find({key}, platform::CurrentUser(), admit).status()));
  exchanged.get();
  EXPECT_TRUE(absl::IsResourceExhausted(Find({key})));
}

}  // namespace
}  // namespace vmm
