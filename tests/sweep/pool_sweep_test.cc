// The fail-Nth sweep over pools: every driver call and every system call of
// each operation failed in turn. Whatever fails, the pool's books agree, and
// nothing is left when it has gone.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

// One segment of 2 MiB after another.
PoolOptions Small(std::uint64_t cap = 0) {
  return {
      .first_segment_size = 2 * kMiB, .max_segment_size = 2 * kMiB, .cap = cap};
}

// The first failure of several calls, all of which are made.
class First {
 public:
  void Of(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  template <typename T>
  std::optional<T> Of(absl::StatusOr<T> result) {
    Of(result.status());
    if (!result.ok()) return std::nullopt;
    return *std::move(result);
  }
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  absl::Status status_;
};

// What the pool does on the way out of every run: whole, and its silent
// failures told.
absl::Status Judge(const Pool& pool, const First& first) {
  const absl::Status whole = pool.CheckInvariants();
  EXPECT_TRUE(whole.ok()) << whole << " after " << first.status();
  return first.ok() ? pool.statistics().last_error : first.status();
}

class PoolSweep : public VmmSweep {
 protected:
  PoolSweep() {
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    context_.emplace(Must(PrimaryContext::Retain(device)));
    current_.emplace(Must(context_->MakeCurrent()));
    for (CUstream& stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
    }
  }
  ~PoolSweep() override {
    for (CUstream stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamDestroy(stream), CUDA_SUCCESS);
    }
  }

  absl::StatusOr<std::unique_ptr<Pool>> MakePool(const PoolOptions& options) {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    return Pool::Create(*device, options);
  }

  // Growth that the driver refuses for want of memory is tried once more when
  // idle memory has been given back: with success, if it was refused once. So
  // each plan is swept twice.
  static void ExpectPoolSwept(SweepPlan plan) {
    plan.results = {CUDA_ERROR_INVALID_VALUE};
    AddAnswers(plan);
    ExpectSwept(OnThisKernel(plan));
    plan.results = {CUDA_ERROR_OUT_OF_MEMORY};
    plan.name += ", without memory";
    plan.system_calls = false;
    for (const char* growth :
         {"cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamGetCtx",
          "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve",
          "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"}) {
      plan.may_fail_silently.emplace_back(growth);
    }
    ExpectSwept(OnThisKernel(plan));
  }

  // An owner and a subscriber in one process. Gone in the order of safety.
  struct Sides {
    std::unique_ptr<Pool> pool;
    std::unique_ptr<Endpoint> endpoint;
    std::optional<Share> publication;
    std::unique_ptr<ImportedPool> imported;
  };
  absl::Status Connect(Sides& sides) {
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Start(
        {.request_timeout = kLongEnough, .transfer_timeout = kLongEnough});
    if (!endpoint.ok()) return endpoint.status();
    sides.endpoint = *std::move(endpoint);
    absl::StatusOr<Share> publication = sides.endpoint->Serve(*sides.pool);
    if (!publication.ok()) return publication.status();
    sides.publication.emplace(*std::move(publication));
    absl::StatusOr<std::unique_ptr<ImportedPool>> imported =
        ImportedPool::Subscribe(driver_, sides.publication->ticket(), {},
                                Soon());
    if (!imported.ok()) return imported.status();
    sides.imported = *std::move(imported);
    return absl::OkStatus();
  }
  SweepPlan PlanOfTwo(const std::string& name,
                      std::function<absl::Status()> run) {
    SweepPlan plan = Plan(name, std::move(run));
    // Threads of both sides meet the failures; each side's word, or its
    // hanging up, is what the other says.
    plan.status_names_call = false;
    // The acceptor tries again, and so does a subscriber that it had no room
    // for; a session that fails is counted, not told; a goodbye that cannot be
    // sent is the end of the process instead.
    plan.may_fail_silently = {
        "accept4", "sendmsg", "poll", "ppoll", "getsockopt", "setsockopt",
        "fstat", "recvmsg", "lstat", "shutdown", "recv", "fcntl",
        "memfd_create", "ftruncate", "mmap", "eventfd", "std::thread",
        // An event that could not be reset wakes its session once more.
        "eventfd_read",
        // Asked of what is being closed, when fcntl() did not say that it is
        // memory: another thread closes what cannot be seen.
        "statx",
        // The owner then does not know when the subscriber's process ends,
        // and keeps what it held.
        "syscall(pidfd_open)",
        // Of a lifeline: whoever looks for an end asks anew.
        "pread",
        // The directory for sockets is there, and nothing need be swept from it.
        "mkdir:EEXIST", "opendir", "readdir"};
    return plan;
  }

  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
  CUstream streams_[2] = {};
};

TEST_F(PoolSweep, CreateAndDestroy) {
  ExpectSwept(
      Plan("create a pool", [this] { return MakePool(Small()).status(); }));
}

TEST_F(PoolSweep, AllocateGrowFreeAndTrim) {
  ExpectPoolSwept(WithPairs(Plan("grow a pool", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
    if (!made.ok()) return made.status();
    Pool& pool = **made;
    First first;
    std::uint64_t kept = 0;
    for (std::uint64_t size : {kMiB, 2 * kMiB, 5 * kMiB}) {
      const auto block = first.Of(pool.Allocate(size, streams_[0]));
      if (!block.has_value()) continue;
      const absl::Status freed = pool.Free(*block, streams_[0]);
      // The driver did not say whether the stream is captured.
      if (!freed.ok()) kept += size;
      first.Of(freed);
    }
    first.Of(pool.Trim().status());
    first.Of(pool.Reserve(3 * kMiB, streams_[0]));
    EXPECT_EQ(pool.statistics().live, kept);
    return Judge(pool, first);
  })));
}

TEST_F(PoolSweep, LiveBlocksGoWithTheirPool) {
  ExpectPoolSwept(Plan("destroy a pool with blocks", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
    if (!made.ok()) return made.status();
    First first;
    for (int i = 0; i < 3; ++i) {
      first.Of((*made)->Allocate(kMiB, nullptr).status());
    }
    return Judge(**made, first);
  }));
}

TEST_F(PoolSweep, FreeOnAnotherStreamAndReleaseStreams) {
  ExpectPoolSwept(
      WithPairs(Plan("free on another stream", [this]() -> absl::Status {
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        Pool& pool = **made;
        First first;
        const auto block = first.Of(pool.Allocate(2 * kMiB, streams_[0]));
        if (block.has_value()) first.Of(pool.Free(*block, streams_[1]));
        first.Of(pool.Allocate(2 * kMiB, streams_[0]).status());
        first.Of(pool.Trim().status());
        for (CUstream stream : streams_) {
          first.Of(pool.ReleaseStream(stream, Soon()));
        }
        return Judge(pool, first);
      })));
}

TEST_F(PoolSweep, PutAStreamBehindAnother) {
  ExpectPoolSwept(
      WithPairs(Plan("put a stream behind another", [this]() -> absl::Status {
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        First first;
        first.Of((*made)->Order(streams_[0], streams_[1], Soon()));
        first.Of((*made)->Order(CU_STREAM_LEGACY, streams_[1], Soon()));
        first.Of((*made)->Order(streams_[1], CU_STREAM_LEGACY, Soon()));
        return Judge(**made, first);
      })));
}

TEST_F(PoolSweep, AtTheCapMemoryMovesBetweenStreamsAndDomains) {
  std::unique_ptr<Pool> pool;
  SweepPlan plan = Plan("move memory at the cap", [&]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small(2 * kMiB));
    if (!made.ok()) return made.status();
    pool = *std::move(made);
    const SharingDomain second = pool->NewDomain();
    First first;
    const auto take = [&](CUstream stream, SharingDomain domain) {
      const auto block =
          first.Of(pool->Allocate(2 * kMiB, stream, {.domain = domain}));
      if (block.has_value()) first.Of(pool->Free(*block, stream));
    };
    take(streams_[0], SharingDomain::kFirst);
    take(streams_[1], SharingDomain::kFirst);
    take(streams_[0], second);
    take(streams_[1], SharingDomain::kFirst);
    return Judge(*pool, first);
  });
  // A driver that refuses everything cannot be waited for, so that the pool's
  // own work (zeroing) may be under way still. Its streams come first, as for
  // any program.
  plan.inventory = [&] {
    for (CUstream stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    pool.reset();
    return TakeInventory(TestDriver());
  };
  ExpectPoolSwept(plan);
}

TEST_F(PoolSweep, ExportABlock) {
  ExpectPoolSwept(WithPairs(Plan("export a block", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
    if (!made.ok()) return made.status();
    Pool& pool = **made;
    First first;
    const auto block = first.Of(pool.Allocate(kMiB, nullptr));
    if (block.has_value()) {
      first.Of(pool.Export(*block).status());
      first.Of(pool.Free(*block, nullptr));
    }
    EXPECT_EQ(pool.statistics().tickets, 0u);
    return Judge(pool, first);
  })));
}

TEST_F(PoolSweep, ServeAndSubscribe) {
  ExpectPoolSwept(
      WithPairs(PlanOfTwo("serve and subscribe", [this]() -> absl::Status {
        Sides sides;
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        sides.pool = *std::move(made);
        First first;
        first.Of(Connect(sides));
        sides.imported.reset();
        sides.endpoint.reset();
        return Judge(*sides.pool, first);
      })));
}

// From the first block on, by a subscriber that comes later, to the end.
absl::Status ImportOne(Pool& pool, ImportedPool& imported, CUdeviceptr block) {
  absl::StatusOr<PoolTicket> ticket = pool.Export(block);
  if (!ticket.ok()) return ticket.status();
  return imported.Import(*ticket, Soon()).status();
}

TEST_F(PoolSweep, FirstImport) {
  ExpectPoolSwept(
      WithPairs(PlanOfTwo("import the first block", [this]() -> absl::Status {
        Sides sides;
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        sides.pool = *std::move(made);
        First first;
        const auto block = first.Of(sides.pool->Allocate(kMiB, nullptr));
        if (!block.has_value()) return Judge(*sides.pool, first);
        first.Of(Connect(sides));
        if (first.ok())
          first.Of(ImportOne(*sides.pool, *sides.imported, *block));
        first.Of(sides.pool->Free(*block, nullptr));
        sides.imported.reset();
        return Judge(*sides.pool, first);
      })));
}

TEST_F(PoolSweep, PushASegmentAndForgetIt) {
  ExpectPoolSwept(
      WithPairs(PlanOfTwo("push a segment", [this]() -> absl::Status {
        Sides sides;
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        sides.pool = *std::move(made);
        First first;
        first.Of(Connect(sides));
        if (!first.ok()) return Judge(*sides.pool, first);
        const auto block = first.Of(sides.pool->Allocate(kMiB, nullptr));
        if (block.has_value()) {
          first.Of(ImportOne(*sides.pool, *sides.imported, *block));
          first.Of(sides.pool->Free(*block, nullptr));
        }
        first.Of(sides.pool->Trim().status());
        first.Of(sides.imported->connection());
        sides.imported.reset();
        return Judge(*sides.pool, first);
      })));
}

TEST_F(PoolSweep, GiveBackAfterAStream) {
  ExpectPoolSwept(
      PlanOfTwo("give back after a stream", [this]() -> absl::Status {
        Sides sides;
        absl::StatusOr<std::unique_ptr<Pool>> made = MakePool(Small());
        if (!made.ok()) return made.status();
        sides.pool = *std::move(made);
        First first;
        const auto block = first.Of(sides.pool->Allocate(kMiB, nullptr));
        first.Of(Connect(sides));
        if (!first.ok()) return Judge(*sides.pool, first);
        const auto ticket = first.Of(sides.pool->Export(*block));
        if (ticket.has_value()) {
          absl::StatusOr<ImportedBlock> imported =
              sides.imported->Import(*ticket, Soon());
          first.Of(imported.status());
          if (imported.ok()) {
            first.Of(
                sides.imported->ReleaseAfter(*std::move(imported), nullptr));
          }
        }
        const absl::Time deadline = Soon();
        ImportedPoolStatistics now = sides.imported->statistics();
        while (now.imported > 0 && now.last_error.ok() &&
               absl::Now() < deadline) {
          absl::SleepFor(absl::Microseconds(100));
          now = sides.imported->statistics();
        }
        first.Of(now.last_error);
        return Judge(*sides.pool, first);
      }));
}

TEST_F(PoolSweep, TheNextImportHasNothingThatCouldFail) {
  Sides sides;
  sides.pool = Must(MakePool(Small()));
  Must(Connect(sides));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 2; ++i) {
    blocks.push_back(Must(sides.pool->Allocate(4096, nullptr)));
  }
  Must(ImportOne(*sides.pool, *sides.imported, blocks[0]));
  SweepPlan plan = Plan("import the next block", [&]() -> absl::Status {
    absl::Status shared = ImportOne(*sides.pool, *sides.imported, blocks[1]);
    if (!shared.ok()) return shared;
    absl::Status freed = sides.pool->Free(blocks[1], nullptr);
    if (!freed.ok()) return freed;
    absl::StatusOr<CUdeviceptr> block = sides.pool->Allocate(4096, nullptr);
    if (block.ok()) blocks[1] = *block;
    return block.status();
  });
  plan.setup = nullptr;
  const SweepResult result = Sweep(plan);
  for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
  EXPECT_EQ(result.driver_points, 0u);
  EXPECT_EQ(result.system_points, 0u);
}

}  // namespace
}  // namespace vmm::testing
