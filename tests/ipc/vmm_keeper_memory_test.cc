// A keeper's client that is refused memory of the host: what it asks next gets no
// answer to what it asked before.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "tests/gpu/spared_driver.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/support/refused_memory.h"
#include "vmm/keeper/keeper.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/imported_allocation.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kSeen = 4096;  // Bytes that are looked at.

class KeeperMemoryTest : public KeeperTest {
 protected:
  using Call = std::function<absl::Status(KeeperClient&)>;

  const platform::Driver& spared() const { return spared_; }

  // For each request for memory of `call`, by a client of its own, once that one
  // was refused; and once more when none was: `then`. `before`, before it.
  void RefuseEach(
      const char* what, const std::function<void()>& before, const Call& call,
      const std::function<void(KeeperClient&, bool was_refused)>& then) {
    bool refused = true;
    for (long nth = 0; refused && !HasFailure(); ++nth) {
      SCOPED_TRACE(::testing::Message() << what << ", request " << nth);
      before();
      KeeperClient client = Client();
      absl::Status called;
      refusal = {nth, /*lasts=*/false};
      try {
        called = call(client);
      } catch (const std::bad_alloc&) {
      }
      refused = std::exchange(refusal, {}).happened;
      EXPECT_TRUE(refused || called.ok()) << called;
      then(client, refused);
    }
  }

 private:
  const platform::Driver spared_ = SparedDriver();
};

TEST_F(KeeperMemoryTest, WhatIsAttachedNextIsNotWhatWasAskedForBefore) {
  if (platform::kHangingUpMayLoseHandles) {
    GTEST_SKIP() << "here handles are put into the importer before it hears "
                    "of them";
  }
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient maker = Client();
  const Allocation a = MakePattern(kGranule, 1);
  const Allocation b = MakePattern(kGranule, 2);
  Must(maker.Put("a", a.shareable(), Late()));
  Must(maker.Put("b", b.shareable(), Late()));
  const auto expect_b_or_none = [&](KeeperClient& client, bool was_refused) {
    const absl::StatusOr<ImportedAllocation> next =
        client.Attach("b", spared(), {}, Late());
    if (next.ok()) {
      ExpectPattern(next->address(), kSeen, 2);
    } else {
      EXPECT_TRUE(was_refused && absl::IsUnavailable(next.status()))
          << next.status();
    }
  };
  RefuseEach(
      "Attach()", [] {},
      [&](KeeperClient& client) {
        return client.Attach("a", spared(), {}, Late()).status();
      },
      expect_b_or_none);
  const absl::Status not_asked = absl::AbortedError("not asked for");
  RefuseEach(
      "AttachOrCreate()", [] {},
      [&](KeeperClient& client) {
        return client
            .AttachOrCreate(
                "a", kGranule, spared(), {}, [&] { return not_asked; }, Late())
            .status();
      },
      expect_b_or_none);
}

TEST_F(KeeperMemoryTest, AnAnswerToSomethingElseGivesNoLock) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient holder = Client();
  const Allocation memory =
      Must(Allocation::Create(Must(Device::ByOrdinal(spared(), 0)),
                              {.size = kGranule, .sharing = TestSharing()}));
  Must(holder.Put("held", memory.shareable(), Late()));
  int turn = 0;
  std::string name;
  const auto take_name = [&] { name = absl::StrCat("turn/", ++turn); };
  const auto expect_not_locked = [&](KeeperClient& client, bool) {
    const absl::Status locked = client.Lock("held", absl::Now());
    EXPECT_TRUE(absl::IsDeadlineExceeded(locked) || absl::IsUnavailable(locked))
        << locked;
    holder.Drop(name, Late()).IgnoreError();  // If it is kept.
  };
  RefuseEach(
      "Put()", take_name,
      [&](KeeperClient& client) {
        return client.Put(name, memory.shareable(), Late());
      },
      expect_not_locked);
  RefuseEach(
      "Drop()",
      [&] {
        take_name();
        Must(holder.Put(name, memory.shareable(), Late()));
      },
      [&](KeeperClient& client) { return client.Drop(name, Late()); },
      expect_not_locked);
  RefuseEach(
      "Lock()",
      [&] {
        take_name();
        Must(holder.Put(name, memory.shareable(), Late()));
        Must(holder.Unlock(name, Late()));
      },
      [&](KeeperClient& client) { return client.Lock(name, Late()); },
      expect_not_locked);
}

TEST_F(KeeperMemoryTest, AReservationThatCannotBeGivenBackGoesWithItsClient) {
  const std::unique_ptr<keeper::Server> server = Start();
  std::optional<KeeperClient> client(Client());
  const absl::Status made_none = absl::AbortedError("this program made none");
  bool threw = false;
  try {
    client
        ->AttachOrCreate(
            "wanted", kGranule, spared(), {},
            [&] {
              refusal = {0, /*lasts=*/true};
              return made_none;
            },
            Late())
        .IgnoreError();
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  refusal = {};
  EXPECT_TRUE(threw);
  EXPECT_FALSE(client->is_open());
  client.reset();
  KeeperClient next = Client();
  const absl::StatusOr<AttachedOrCreated> created = next.AttachOrCreate(
      "wanted", kGranule, spared(), {}, [&] { return Make(kGranule); }, Late());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->outcome, KeptMemoryFrom::kCreated);
}

TEST_F(KeeperMemoryTest, AClientIsDestroyedWithoutMemory) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = Make(kGranule);
  std::optional<KeeperClient> client(Client());
  Must(client->Put("a", memory.shareable(), Late()));
  refusal = {0, /*lasts=*/true};
  client.reset();
  refusal = {};
  // Its lock is this process's until another connection takes it.
  KeeperClient next = Client();
  const absl::Status locked = next.Lock("a", Late());
  EXPECT_TRUE(locked.ok()) << locked;
}

}  // namespace
}  // namespace vmm::testing
