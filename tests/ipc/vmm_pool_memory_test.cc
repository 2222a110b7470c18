// A pool that is refused memory for its books, wherever it asks for some, goes on
// when there is memory again: it waits for nobody, and loses nothing. Nor does a
// queue of retired memory; and memory that was made here, or is another's, goes
// without any.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/spared_driver.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/hostile_owner.h"
#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/refused_memory.h"
#include "vmm/c/hooks.h"
#include "vmm/c/internal/handles.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/retire.h"

namespace vmm::testing {
namespace {

// Ends a program that hangs, and says where.
class Watchdog {
 public:
  explicit Watchdog(const char* what)
      : thread_([this, what] { Watch(what); }) {}
  ~Watchdog() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Note(long nth) { nth_ = nth; }

 private:
  static constexpr std::chrono::seconds kPatience{60};

  void Watch(const char* what) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, kPatience, [this] { return ended_; })) return;
    std::fprintf(stderr, "%s hangs, where request %ld for memory was refused\n",
                 what, nth_.load());
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<long> nth_ = 0;
  std::thread thread_;  // Last: it uses the others.
};

class PoolMemoryTest : public PoolIpcTest {
 protected:
  static constexpr std::uint64_t kCap = 8 * kMiB;

  void UseCappedPool() {
    pool_ = Must(Pool::Create(spared_, SmallSegments(kCap)));
  }

  const Device& spared() const { return spared_; }

  // Calls `then` for each request for memory of `call`, once that and perhaps all
  // later ones were refused; and once more when none was. Before each `call`,
  // `before`.
  static void RefuseEach(const char* what, const std::function<void()>& before,
                         const std::function<void()>& call,
                         const std::function<void()>& then) {
    Watchdog watchdog(what);
    for (const bool lasts : {false, true}) {
      bool refused = true;
      for (long nth = 0; refused && !HasFailure(); ++nth) {
        SCOPED_TRACE(::testing::Message() << what << ", request " << nth
                                          << (lasts ? " and all later" : ""));
        watchdog.Note(nth);
        before();
        refusal = {nth, lasts};
        try {
          call();
        } catch (const std::bad_alloc&) {
        }
        refused = std::exchange(refusal, {}).happened;
        then();
      }
    }
  }
  // Calls `free` on a thread that no pool knows, which the memory is refused.
  static void OnANewThread(const std::function<absl::Status()>& free) {
    Refusal given = std::exchange(refusal, {});
    std::thread([&] {
      absl::Status freed;
      bool threw = false;
      refusal = given;
      try {
        freed = free();
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      given.happened = std::exchange(refusal, {}).happened;
      EXPECT_FALSE(threw);
      EXPECT_EQ(freed, absl::OkStatus());
    }).join();
    refusal = given;
  }
  // All that was freed comes back, and serves a block as large as the pool.
  void ExpectAllServes() {
    Must(pool_->ReleaseStream(nullptr, Late()));
    Must(pool_->Trim());
    EXPECT_EQ(pool_->statistics().live, 0u);
    EXPECT_EQ(pool_->statistics().reserved, 0u);
    ExpectWhole();
    EXPECT_TRUE(pool_->Allocate(kCap, nullptr).ok());
    ExpectWhole();
  }

 private:
  const Device spared_ = Must(Device::ByOrdinal(SparedDriver(), 0));
};

TEST_F(PoolMemoryTest, AnAllocationThatIsRefusedSomeLeavesAPoolThatServes) {
  RefuseEach(
      "Allocate()", [&] { UseCappedPool(); },
      [&] { pool_->Allocate(kGranule, nullptr).IgnoreError(); },
      [&] {
        ExpectWhole();
        EXPECT_TRUE(pool_->Allocate(kGranule, nullptr).ok());
        ExpectWhole();
      });
}

TEST_F(PoolMemoryTest, AReservationThatIsRefusedSomeLeavesAPoolThatServes) {
  RefuseEach(
      "Reserve()", [&] { UseCappedPool(); },
      [&] { pool_->Reserve(kCap, nullptr).IgnoreError(); },
      [&] {
        ExpectWhole();
        EXPECT_TRUE(pool_->Reserve(kCap, nullptr).ok());
        EXPECT_TRUE(pool_->Allocate(kCap, nullptr).ok());
        ExpectWhole();
      });
}

TEST_F(PoolMemoryTest, APoolEndsThatWasRefusedSomeWhenItCameToBeServed) {
  RefuseEach(
      "Serve()",
      [&] {
        UseCappedPool();
        Free(Take(kGranule));
      },
      [&] { endpoint_->Serve(*pool_).IgnoreError(); },
      [&] {
        {
          const Share publication = Serve();
          const CUdeviceptr block = Take(kGranule);
          Must(Subscribe(publication)->Import(Export(block), Late()));
          Free(block);
        }
        ExpectNothingHeld();
        ExpectAllServes();
        pool_.reset();
      });
}

TEST_F(PoolMemoryTest, ASegmentOfAServedPoolThatIsRefusedSomeComesLater) {
  std::optional<Share> publication;
  std::unique_ptr<ImportedPool> peer;
  RefuseEach(
      "Allocate() of a served pool",
      [&] {
        publication.reset();
        peer.reset();
        UseCappedPool();
        publication.emplace(Serve());
        peer = Subscribe(*publication);
        Must(peer->Import(Export(Take(kGranule)), Late()));
      },
      [&] { pool_->Allocate(3 * kGranule / 2, nullptr).IgnoreError(); },
      [&] {
        ExpectWhole();
        Must(peer->Import(Export(Take(kGranule)), Late()));
      });
  peer.reset();
  publication.reset();
}

TEST_F(PoolMemoryTest, FreedBlocksAreNotLostWhereTheirBooksAreRefusedSome) {
  std::vector<CUdeviceptr> blocks;
  RefuseEach(
      "Free()",
      [&] {
        UseCappedPool();
        // More than a thread keeps of a size.
        for (int i = 0; i < 400; ++i)
          blocks.push_back(Take(512 + 512 * (i % 4)));
      },
      [&] {
        for (; !blocks.empty(); blocks.pop_back()) Free(blocks.back());
        // Where all that was freed is looked through.
        const auto block = pool_->Allocate(5 * kMiB, nullptr);
        if (block.ok()) Free(*block);
      },
      [&] {
        for (; !blocks.empty(); blocks.pop_back()) Free(blocks.back());
        ExpectAllServes();
      });
}

TEST_F(PoolMemoryTest, ANewThreadThatIsRefusedSomeFreesTheBlock) {
  CUdeviceptr block = 0;
  RefuseEach(
      "Free() on a new thread",
      [&] {
        UseCappedPool();
        block = Take(kGranule);
      },
      [&] { OnANewThread([&] { return pool_->Free(block, nullptr); }); },
      [&] {
        EXPECT_EQ(pool_->statistics().live_blocks, 0u);
        ExpectAllServes();
      });
}

TEST_F(PoolMemoryTest, ATrimThatIsRefusedSomeLosesNothing) {
  RefuseEach(
      "Trim()",
      [&] {
        UseCappedPool();
        FreeAll({Take(4096), Take(kGranule), Take(5 * kMiB)});
      },
      [&] { pool_->Trim().IgnoreError(); }, [&] { ExpectAllServes(); });
}

TEST_F(PoolMemoryTest, AReleaseOfAStreamThatIsRefusedSomeLosesNothing) {
  RefuseEach(
      "ReleaseStream()",
      [&] {
        UseCappedPool();
        FreeAll({Take(4096), Take(kGranule), Take(5 * kMiB)});
      },
      [&] { pool_->ReleaseStream(nullptr, Late()).IgnoreError(); },
      [&] { ExpectAllServes(); });
}

// What another stream freed serves, if it must be waited for.
TEST_F(PoolMemoryTest, ALastResortThatIsRefusedSomeLosesNothing) {
  const Stream first;
  const Stream second;
  RefuseEach(
      "Allocate() at the cap",
      [&] {
        UseCappedPool();
        for (int i = 0; i < 2; ++i) {
          const CUdeviceptr block =
              Must(pool_->Allocate(3 * kMiB, first.get()));
          Must(pool_->Free(block, first.get()));
        }
      },
      [&] {
        const absl::StatusOr<CUdeviceptr> block =
            pool_->Allocate(kCap, second.get());
        if (block.ok()) Must(pool_->Free(*block, second.get()));
      },
      [&] {
        ExpectWhole();
        Must(pool_->ReleaseStream(first.get(), Late()));
        Must(pool_->ReleaseStream(second.get(), Late()));
        ExpectAllServes();
      });
}

// What a stream freed, and the GPU uses still, is that stream's also where the
// pool grows for a block that would begin there, and has no room in its books.
TEST_F(PoolMemoryTest, AGrowthThatIsRefusedSomeLeavesAStreamWhatItFreed) {
  if (!driver().Need<&platform::DriverTable::cuStreamWaitValue64>().ok()) {
    GTEST_SKIP() << "this driver cannot hold a stream";
  }
  // With one more their table is half full, and grows.
  constexpr int kBlocks = 512;
  constexpr std::uint64_t kSmall = 256;
  constexpr std::uint64_t kRest = 4 * kMiB - (kBlocks - 1) * kSmall;
  HeldStream held(device);
  const Stream other;
  CUdeviceptr freed = 0;
  CUdeviceptr grown = 0;
  RefuseEach(
      "Allocate() beside what its stream freed",
      [&] {
        UseCappedPool();
        for (int i = 1; i < kBlocks; ++i) Take(kSmall);
        const CUdeviceptr rest = Must(pool_->Allocate(kRest, held.get()));
        Must(pool_->Free(rest, held.get()));
        // The last of these blocks is cut from that.
        EXPECT_EQ(Must(pool_->Allocate(kSmall, held.get())), rest);
        freed = rest + kSmall;
        grown = 0;
      },
      [&] { grown = pool_->Allocate(4 * kMiB, held.get()).value_or(0); },
      [&] {
        ExpectWhole();
        const CUdeviceptr block = Must(pool_->Allocate(2 * kMiB, other.get()));
        EXPECT_GE(block, freed + kRest - kSmall);
        ExpectWhole();
      });
  EXPECT_EQ(grown, freed) << "that was not beside what its stream freed";
}

// One that PyTorch asks knows of no block that it did not get, so that its pool
// goes; and says why.
TEST_F(PoolMemoryTest, AHookThatIsRefusedSomeSaysSoAndKeepsNoPool) {
  const int ordinal = spared().ordinal();
  void* const stream = CU_STREAM_LEGACY;
  const auto set = [&](vmmshare_pool* given) {
    EXPECT_EQ(vmmshare_torch_set_pool(ordinal, given, nullptr), VMMSHARE_OK);
  };
  std::unique_ptr<vmmshare_pool> handle;
  std::weak_ptr<Pool> pool;
  void* block = nullptr;
  RefuseEach(
      "vmmshare_torch_alloc()",
      [&] {
        handle = std::make_unique<vmmshare_pool>(
            Must(Pool::Create(spared(), SmallSegments(kCap))));
        pool = handle->pool;
        set(handle.get());
      },
      [&] { block = vmmshare_torch_alloc(kGranule, ordinal, stream); },
      [&] {
        EXPECT_EQ(vmmshare_hooks_last_error(nullptr),
                  block == nullptr ? VMMSHARE_RESOURCE_EXHAUSTED : VMMSHARE_OK);
        EXPECT_EQ(vmmshare_hooks_last_error(nullptr), VMMSHARE_OK);
        vmmshare_torch_free(block, kGranule, ordinal, stream);
        set(nullptr);
        handle.reset();
        EXPECT_TRUE(pool.expired());
        EXPECT_EQ(vmmshare_hooks_last_error(nullptr), VMMSHARE_OK);
      });
  EXPECT_NE(block, nullptr);
}

// Also beside another pool, which is asked first.
TEST_F(PoolMemoryTest, AHookThatIsRefusedSomeOnANewThreadFreesTheBlock) {
  const int ordinal = spared().ordinal();
  void* const stream = CU_STREAM_LEGACY;
  struct OfOne {
    std::unique_ptr<vmmshare_pool> handle;
    std::weak_ptr<Pool> pool;
    void* block = nullptr;
  };
  const auto begin = [&](OfOne& one) {
    one.handle = std::make_unique<vmmshare_pool>(
        Must(Pool::Create(spared(), SmallSegments(kCap))));
    one.pool = one.handle->pool;
    EXPECT_EQ(vmmshare_torch_set_pool(ordinal, one.handle.get(), nullptr),
              VMMSHARE_OK);
    one.block = vmmshare_torch_alloc(kGranule, ordinal, stream);
    EXPECT_NE(one.block, nullptr);
  };
  OfOne first;
  OfOne second;
  // Made before, for it takes memory itself.
  const std::function<absl::Status()> free_second = [&] {
    vmmshare_torch_free(second.block, kGranule, ordinal, stream);
    return absl::OkStatus();
  };
  RefuseEach(
      "vmmshare_torch_free() on a new thread",
      [&] {
        begin(first);
        begin(second);
      },
      [&] { OnANewThread(free_second); },
      [&] {
        EXPECT_EQ(vmmshare_hooks_last_error(nullptr), VMMSHARE_OK);
        vmmshare_torch_free(first.block, kGranule, ordinal, stream);
        EXPECT_EQ(vmmshare_torch_set_pool(ordinal, nullptr, nullptr),
                  VMMSHARE_OK);
        for (OfOne* const one : {&first, &second}) {
          one->handle.reset();
          EXPECT_TRUE(one->pool.expired());
        }
        EXPECT_EQ(vmmshare_hooks_last_error(nullptr), VMMSHARE_OK);
      });
}

// It ends in destructors, where nobody can be told.
TEST_F(PoolMemoryTest, MemoryGoesWhereTheHostHasNone) {
  for (const SharePolicy& sharing :
       {SharePolicy::Private(), SharePolicy::Require(kNativeKind),
        SharePolicy::Require(HandleKind::kLegacyIpc)}) {
    std::optional<Allocation> memory = Must(
        Allocation::Create(spared(), {.size = kGranule, .sharing = sharing}));
    const CUdeviceptr address = memory->address();
    refusal = {0, true};
    memory.reset();
    refusal = {};
    unsigned int type = 0;
    EXPECT_NE(driver()->cuPointerGetAttribute(
                  &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
              CUDA_SUCCESS);
  }
}

// Or it would be unmapped under the work that uses it.
TEST_F(PoolMemoryTest, MemoryThatCannotBeRetiredStaysMappedAndTheCallers) {
  std::optional<RetireQueue> queue;
  std::optional<Allocation> memory;
  CUdeviceptr address = 0;
  bool is_retired = false;
  const auto is_mapped = [&] {
    unsigned long long access = 0;
    const CUmemLocation here = Location::On(device).ToCuda();
    return driver()->cuMemGetAccess(&access, &here, address) == CUDA_SUCCESS;
  };
  RefuseEach(
      "Retire()",
      [&] {
        queue.emplace(spared().driver());
        memory.emplace(Must(Allocation::Create(spared(), {.size = kGranule})));
        address = memory->address();
        is_retired = false;
      },
      [&] { is_retired = queue->Retire(std::move(*memory), nullptr).ok(); },
      [&] {
        EXPECT_TRUE(is_mapped());
        EXPECT_EQ(queue->size(), is_retired ? 1u : 0u);
        if (!is_retired) {
          ASSERT_TRUE(memory->is_mapped());
          EXPECT_EQ(memory->address(), address);
          Must(queue->Retire(std::move(*memory), nullptr));
        }
        Must(queue->Drain(Late()));
        EXPECT_FALSE(is_mapped());
      });
}

// It forgets a segment of which a block is held.
class ForgetfulOwner : public HostileOwner {
 protected:
  std::string StartOne() {
    return Start([this](platform::Channel& channel, pool::ShareTable& table,
                        pool::PeerId peer) {
      Must(table.Publish(1, 0, kGranule));
      Welcome(channel, table, peer);
      Must(pool::SendNotice(channel, SegmentOf(memory_, 1), Late()));
      AwaitGoOn();
      Must(pool::SendNotice(channel, pool::ForgetSegment{1}, Late()));
      Must(pool::SendNotice(channel, pool::Closed(), Late()));
    });
  }
  // Imports the block, and gives it back when its segment is forgotten.
  template <typename PoolOfIt>
  void GiveBack(PoolOfIt& pool) {
    std::optional<ImportedBlock> block =
        Must(pool.Import(TicketOf({0, 1}, 1, 0, kGranule), Late()));
    const platform::Channel go_on = GoOn();
    ExpectSoon([&] { return !pool.connection().ok(); });
    EXPECT_EQ(pool.statistics().segments, 1u);
    refusal = {0, /*lasts=*/true};
    block.reset();
    refusal = {};
  }

 private:
  const Allocation memory_ = MakePattern(kGranule, 5);
};

// Both end in destructors, where nobody can be told.
TEST_F(ForgetfulOwner, WhatItForgotGoesWithItsLastBlockWhereTheHostHasNone) {
  std::unique_ptr<ImportedPool> pool =
      Must(ImportedPool::Subscribe(SparedDriver(), StartOne(), {}, Late()));
  GiveBack(*pool);
  EXPECT_EQ(pool->statistics().segments, 0u);
  refusal = {0, /*lasts=*/true};
  pool.reset();
  refusal = {};
}

TEST_F(ForgetfulOwner, WhatItForgotIsKeptForFencesWhereTheHostHasNone) {
  const std::unique_ptr<pool::Subscription> pool = SubscribeAndKeep(StartOne());
  GiveBack(*pool);
  EXPECT_EQ(pool->statistics().segments, 1u);
}

}  // namespace
}  // namespace vmm::testing
