// Symmetric memory of ranks that are threads of this process.
#include "vmm/job/symmetric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "fabric/job_card.h"
#include "tests/job/local_job.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "tests/support/test_driver.h"
#include "vmm/memory/device.h"

namespace vmm::testing {
namespace {

using job::SymmetricMemory;
using job::SymmetricOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;

Device DeviceOf(int rank) {
  const std::vector<Device> all = Must(Device::All(TestDriver()));
  return all[static_cast<std::size_t>(rank) % all.size()];
}

SymmetricOptions Sized(std::uint64_t size) {
  SymmetricOptions options;
  options.size = size;
  return options;
}

std::uint64_t WordOf(int writer, int owner) {
  return 0x1000u * static_cast<unsigned>(writer) + static_cast<unsigned>(owner);
}

// Every rank writes a word into every rank's memory, at its own place.
void WriteToAll(const SymmetricMemory& memory) {
  for (int owner = 0; owner < memory.ranks(); ++owner) {
    const std::uint64_t word = WordOf(memory.rank(), owner);
    EXPECT_EQ(TestDriver()->cuMemcpyHtoD(
                  memory.address(owner) + 8 * memory.rank(), &word, 8),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
}

void ReadFromAll(const SymmetricMemory& memory) {
  for (int owner = 0; owner < memory.ranks(); ++owner) {
    for (int writer = 0; writer < memory.ranks(); ++writer) {
      std::uint64_t word = 0;
      EXPECT_EQ(TestDriver()->cuMemcpyDtoH(
                    &word, memory.address(owner) + 8 * writer, 8),
                CUDA_SUCCESS);
      EXPECT_EQ(word, WordOf(writer, owner));
    }
  }
}

void ExpectAllReadWhatAllWrote(const SymmetricOptions& options) {
  LocalJob job(4);
  job.RunAll([&options](int rank, fabric::Exchange& exchange) {
    const Device device = DeviceOf(rank);
    const PrimaryContext context = Must(PrimaryContext::Retain(device));
    const CurrentContext current = Must(context.MakeCurrent());
    const SymmetricMemory memory =
        Must(SymmetricMemory::Create(device, exchange, options, Late()));
    EXPECT_EQ(memory.rank(), rank);
    EXPECT_EQ(memory.ranks(), 4);
    EXPECT_EQ(memory.size(), options.size);
    EXPECT_EQ(memory.kind(rank), std::nullopt);
    for (int peer = 0; peer < 4; ++peer) {
      if (options.one_range) {
        EXPECT_EQ(memory.address(peer), memory.base() + peer * memory.stride());
      }
      if (peer != rank) {
        EXPECT_EQ(memory.kind(peer), SharePolicy::Native().kinds().front());
      }
    }
    WriteToAll(memory);
    Must(Gather(exchange, "written", {}, Late()).status);
    ReadFromAll(memory);
    Must(Gather(exchange, "read", {}, Late()).status);
  });
}

TEST(SymmetricMemory, IsReadAndWrittenByAllAtEqualDistances) {
  ExpectAllReadWhatAllWrote(Sized(3 << 20));
}

TEST(SymmetricMemory, NeedsNoCommonRange) {
  SymmetricOptions options = Sized(100);
  options.one_range = false;
  ExpectAllReadWhatAllWrote(options);
}

TEST(SymmetricMemory, LeavesNoHandle) {
  ExpectAllReadWhatAllWrote(Sized(4096));
  const ExpectNoNewHandles no_new_handles;
  ExpectAllReadWhatAllWrote(Sized(4096));
}

TEST(SymmetricMemory, CanBeMadeAgainAndAgain) {
  LocalJob job(2);
  job.RunAll([](int rank, fabric::Exchange& exchange) {
    std::vector<SymmetricMemory> kept;
    for (int i = 0; i < 3; ++i) {
      kept.push_back(Must(SymmetricMemory::Create(DeviceOf(rank), exchange,
                                                  Sized(1000), Late())));
    }
    EXPECT_NE(kept[0].base(), kept[1].base());
  });
}

// Runs `create` on all ranks and hands what each was told to `check`.
void ExpectAllFail(
    LocalJob& job, const std::function<SymmetricOptions(int)>& options,
    const std::function<void(int, const absl::Status&)>& check,
    const std::function<absl::StatusOr<Device>(int)>& device = &DeviceOf) {
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    const absl::StatusOr<SymmetricMemory> memory =
        SymmetricMemory::Create(device(rank), exchange, options(rank), Late());
    ASSERT_FALSE(memory.ok());
    check(rank, memory.status());
  });
}

TEST(SymmetricMemory, OfDifferentSizesIsRefusedOnEveryRank) {
  LocalJob job(3);
  ExpectAllFail(
      job, [](int rank) { return Sized(rank == 1 ? 2000 : 1000); },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("rank 0 (host "), HasSubstr(") 1000, rank 1 "),
                  HasSubstr(") 2000"), HasSubstr("SymmetricOptions::size")));
      });
}

TEST(SymmetricMemory, OverLegacyIpcIsRefusedOnEveryRank) {
  LocalJob job(2);
  ExpectAllFail(
      job,
      [](int) {
        SymmetricOptions options = Sized(1000);
        options.sharing = SharePolicy::Require(HandleKind::kLegacyIpc);
        return options;
      },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("legacy IPC"));
      });
}

// As programs name them that take whatever works, and kinds that are named twice.
TEST(SymmetricMemory, IsOfTheKindThatWorksWhereLegacyIpcIsNamedToo) {
  const HandleKind native = SharePolicy::Native().kinds().front();
  SymmetricOptions options = Sized(1000);
  options.sharing = SharePolicy::AnyOf(
      {native, HandleKind::kLegacyIpc, native, native, native});
  ExpectAllReadWhatAllWrote(options);
}

TEST(SymmetricMemory, OfSizeZeroIsRefusedOnEveryRank) {
  LocalJob job(2);
  ExpectAllFail(
      job, [](int) { return Sized(0); },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (host "));
      });
}

TEST(SymmetricMemory, ThatOneRankCannotAllocateFailsOnAll) {
  LocalJob job(3);
  ExpectAllFail(
      job, [](int rank) { return Sized(rank == 2 ? 1ull << 50 : 1000); },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("rank 2 (host "), HasSubstr("GPU-")));
      });
}

TEST(SymmetricMemory, ThatOneRankHasNoDeviceForFailsOnAll) {
  LocalJob job(2);
  ExpectAllFail(
      job, [](int) { return Sized(1000); },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsNotFound(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("rank 1 (host "), HasSubstr("no GPU")));
      },
      [](int rank) -> absl::StatusOr<Device> {
        if (rank == 1) return absl::NotFoundError("no GPU");
        return DeviceOf(rank);
      });
}

// One rank's ticket leads nowhere: the others must not believe it worked.
TEST(SymmetricMemory, ThatOneRankCannotMapFailsOnAll) {
  LocalJob job(3);
  job.tamper = [](int rank, const std::string& key, fabric::Bytes& value) {
    if (rank != 2 || !absl::StrContains(key, "ticket")) return;
    fabric::JobCard card = Must(fabric::DecodeCard(value));
    card.mapped_size += 2 << 20;
    value = fabric::EncodeCard(card);
  };
  ExpectAllFail(
      job, [](int) { return Sized(1000); },
      [](int, const absl::Status& status) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("it cannot map memory of rank 2"));
      });
}

TEST(SymmetricMemory, OfARankThatIsMissingEndsByTheDeadlineAndNamesIt) {
  LocalJob job(2);
  job.Run({0}, [](int rank, fabric::Exchange& exchange) {
    // Before: that loads the driver, which may take seconds.
    const Device device = DeviceOf(rank);
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    const absl::Status status =
        SymmetricMemory::Create(device, exchange, Sized(1000), deadline)
            .status();
    EXPECT_LE(absl::Now(), deadline + kRankGrace);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("no ticket came from rank 1"));
  });
}

// MPI waits for a rank as long as that takes: once it is there, it is not dead.
TEST(SymmetricMemory, OfARankThatIsLateOverAnExchangeThatWaitsIsMade) {
  absl::Status told[2];
  // Only a busy machine needs more than the first of them to map.
  for (const absl::Duration time :
       {absl::Seconds(2), absl::Seconds(8), absl::Seconds(32)}) {
    LocalJob job(2);
    std::promise<void> begun;
    job.RunAll([&](int rank, fabric::Exchange&) {
      const Device device = DeviceOf(rank);  // That may take seconds.
      fabric::ExchangeCallbacks callbacks = job.Callbacks(rank);
      callbacks.fence = [fence = callbacks.fence](absl::Time) {
        return fence(absl::Now() + absl::Minutes(2));
      };
      fabric::CallbackExchange exchange(callbacks);
      Deadline deadline = absl::InfiniteFuture();
      if (rank == 0) {
        deadline = Deadline::In(time);
        begun.set_value();
      } else {
        begun.get_future().wait();
        absl::SleepFor(time);  // Longer than the first has.
      }
      told[rank] =
          SymmetricMemory::Create(device, exchange, Sized(1000), deadline)
              .status();
    });
    if (told[0].ok() && told[1].ok()) break;
  }
  EXPECT_TRUE(told[0].ok()) << told[0];
  EXPECT_TRUE(told[1].ok()) << told[1];
}

}  // namespace
}  // namespace vmm::testing
