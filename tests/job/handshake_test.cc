// Handshakes of ranks that are threads of this process, on one host.
#include "vmm/job/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "fabric/job_card.h"
#include "fabric/job_matrix.h"
#include "tests/job/local_job.h"
#include "tests/support/child.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "tests/support/test_driver.h"
#include "vmm/memory/allocation.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using job::Handshake;
using job::HandshakeResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<Device> DeviceOf(int rank) {
  const std::vector<Device> all = Must(Device::All(TestDriver()));
  return all[static_cast<std::size_t>(rank) % all.size()];
}

// The results of all ranks that took part, by rank.
std::vector<HandshakeResult> MeetAll(
    LocalJob& job, const std::vector<int>& ranks,
    absl::Duration time = absl::Seconds(30),
    const std::function<absl::StatusOr<Device>(int)>& device = &DeviceOf) {
  std::mutex mutex;
  std::map<int, HandshakeResult> results;
  job.Run(ranks, [&](int rank, fabric::Exchange& exchange) {
    // Before: that loads the driver, which may take seconds.
    const absl::StatusOr<Device> own = device(rank);
    const absl::Time deadline = absl::Now() + time;
    HandshakeResult result = Handshake(own, exchange, {}, deadline);
    EXPECT_LE(absl::Now(), deadline + kRankGrace);
    const std::lock_guard<std::mutex> lock(mutex);
    results.emplace(rank, std::move(result));
  });
  std::vector<HandshakeResult> list;
  for (auto& [rank, result] : results) list.push_back(std::move(result));
  return list;
}

HandleKind Native() { return SharePolicy::Native().kinds().front(); }

TEST(Handshake, OnOneHostChoosesTheSystemsOwnHandles) {
  LocalJob job(4);
  for (const HandshakeResult& met : MeetAll(job, {0, 1, 2, 3})) {
    ASSERT_TRUE(met.status.ok()) << met.status;
    EXPECT_TRUE(met.matrix.AllReach().ok()) << met.matrix.AllReach();
    EXPECT_EQ(met.matrix.size(), 4);
    for (int importer = 0; importer < 4; ++importer) {
      for (int owner = 0; owner < 4; ++owner) {
        if (importer == owner) continue;
        EXPECT_EQ(met.matrix.Chosen(importer, owner), Native());
      }
    }
  }
}

// Of a blocking stream: beside it the legacy one is asked nothing.
TEST(Handshake, BreaksNoCaptureOfAStream) {
  const platform::Driver& driver = TestDriver();
  const PrimaryContext context =
      Must(PrimaryContext::Retain(Must(DeviceOf(0))));
  const CurrentContext current = Must(context.MakeCurrent());
  CUstream stream = nullptr;
  ASSERT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  LocalJob job(2);
  const std::vector<HandshakeResult> all = MeetAll(job, {0, 1});
  CUgraph graph = nullptr;
  EXPECT_EQ(driver->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  if (graph != nullptr) driver->cuGraphDestroy(graph);
  EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  for (const HandshakeResult& met : all) {
    ASSERT_TRUE(met.status.ok()) << met.status;
    EXPECT_TRUE(met.matrix.AllReach().ok()) << met.matrix.AllReach();
  }
}

TEST(Handshake, LeavesNoHandleAndNoMemory) {
  {
    LocalJob job(2);
    MeetAll(job, {0, 1});  // What is kept for ever is there.
  }
  const ExpectNoNewHandles no_new_handles;
  LocalJob job(3);
  for (const HandshakeResult& met : MeetAll(job, {0, 1, 2})) {
    EXPECT_TRUE(met.status.ok()) << met.status;
  }
}

TEST(Handshake, OfOneRankIsDoneAtOnce) {
  LocalJob job(1);
  const std::vector<HandshakeResult> met = MeetAll(job, {0});
  EXPECT_TRUE(met[0].status.ok()) << met[0].status;
  EXPECT_TRUE(met[0].matrix.AllReach().ok());
}

TEST(Handshake, TellsAllRanksOfTheOneWithoutADevice) {
  LocalJob job(3);
  const auto device = [](int rank) {
    return rank == 1 ? absl::NotFoundError("no driver is installed")
                     : DeviceOf(rank);
  };
  for (const HandshakeResult& met :
       MeetAll(job, {0, 1, 2}, absl::Seconds(30), device)) {
    ASSERT_TRUE(met.status.ok()) << met.status;
    EXPECT_EQ(met.matrix.Chosen(0, 2), Native());
    EXPECT_EQ(met.matrix.Chosen(2, 0), Native());
    for (const auto& [importer, owner] :
         {std::pair{0, 1}, {1, 0}, {1, 2}, {2, 1}}) {
      const absl::Status why = met.matrix.WhyNot(importer, owner);
      EXPECT_TRUE(absl::IsNotFound(why)) << why;
      EXPECT_THAT(std::string(why.message()),
                  AllOf(HasSubstr("rank 1 (host "), HasSubstr("no device"),
                        HasSubstr("no driver is installed [no-device]"),
                        HasSubstr("vmmshare doctor")));
    }
  }
}

TEST(Pitfall28, ARankThatNeverComesIsNamedToAllByTheDeadline) {
  LocalJob job(3);
  // Half of it is for the cards, which seconds of work precede.
  for (const HandshakeResult& met : MeetAll(job, {0, 2}, absl::Seconds(10))) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(met.status)) << met.status;
    EXPECT_THAT(std::string(met.status.message()),
                HasSubstr("no card came from rank 1"));
    EXPECT_TRUE(met.matrix.Answered(0).ok());
    EXPECT_FALSE(met.matrix.Answered(1).ok());
    EXPECT_FALSE(met.matrix.WhyNot(0, 2).ok());
  }
}

// The rank's endpoint is there and never answers, as one that was stopped.
TEST(Handshake, ARankThatIsLostBetweenTheRoundsIsNamedToAll) {
  LocalJob job(3);
  job.Run({0, 1, 2}, [&job](int rank, fabric::Exchange&) {
    fabric::ExchangeCallbacks callbacks = job.Callbacks(rank);
    int puts = 0;
    callbacks.put = [put = callbacks.put, get = callbacks.get, rank, &puts](
                        const std::string& key,
                        absl::Span<const std::uint8_t> value,
                        absl::Time deadline) -> absl::Status {
      if (rank != 1 || ++puts != 2) return put(key, value, deadline);
      // Its row never comes: it gives up, but not before the others have tried
      // its memory, which goes with it.
      for (int other : {0, 2}) {
        EXPECT_TRUE(get(other, key, deadline).ok()) << other;
      }
      return absl::UnavailableError("lost");
    };
    fabric::CallbackExchange exchange(callbacks);
    const absl::StatusOr<Device> device = DeviceOf(rank);
    // What the others try must be done by then, and takes seconds of a busy
    // machine.
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    const HandshakeResult met = Handshake(device, exchange, {}, deadline);
    EXPECT_LE(absl::Now(), deadline + kRankGrace);
    ASSERT_FALSE(met.status.ok());
    if (rank == 1) return;
    EXPECT_THAT(std::string(met.status.message()),
                HasSubstr("no row came from rank 1"));
    // What the others found is known all the same.
    EXPECT_EQ(met.matrix.Chosen(0, 2), Native());
    EXPECT_EQ(met.matrix.Chosen(0, 1), Native());
    EXPECT_EQ(met.matrix.Chosen(1, 0), std::nullopt);
  });
}

TEST(Handshake, NamesTheRankOfAnotherVersion) {
  LocalJob job(3);
  job.tamper = [](int rank, const std::string&, fabric::Bytes& value) {
    if (rank == 2) value[4] = 9;
  };
  for (const HandshakeResult& met : MeetAll(job, {0, 1, 2})) {
    EXPECT_TRUE(absl::IsFailedPrecondition(met.status)) << met.status;
    EXPECT_THAT(std::string(met.status.message()),
                AllOf(HasSubstr("the card of rank 2"), HasSubstr("version 9"),
                      HasSubstr("Install the same vmmshare")));
  }
}

TEST(Handshake, NamesTheRankWhoseCardWasDamaged) {
  LocalJob job(2);
  job.tamper = [](int rank, const std::string&, fabric::Bytes& value) {
    if (rank == 0) value.resize(value.size() / 2);
  };
  for (const HandshakeResult& met : MeetAll(job, {0, 1})) {
    EXPECT_TRUE(absl::IsFailedPrecondition(met.status)) << met.status;
    EXPECT_THAT(std::string(met.status.message()),
                HasSubstr("the card of rank 0"));
  }
}

TEST(Handshake, NamesTheRankWhoseRowWasDamaged) {
  LocalJob job(2);
  job.tamper = [](int rank, const std::string& key, fabric::Bytes& value) {
    if (rank == 1 && absl::StrContains(key, "row")) value.back() ^= 1;
  };
  for (const HandshakeResult& met : MeetAll(job, {0, 1})) {
    EXPECT_TRUE(absl::IsFailedPrecondition(met.status)) << met.status;
    EXPECT_THAT(std::string(met.status.message()),
                HasSubstr("the row of rank 1"));
    EXPECT_EQ(met.matrix.Chosen(0, 1), Native());
  }
}

// A good row, and another rank's, or one of another job.
TEST(Handshake, NamesTheRankWhoseRowIsAnothers) {
  for (const auto& [rank, ranks] : {std::pair{0u, 2u}, {1u, 3u}}) {
    LocalJob job(2);
    job.tamper = [rank = rank, ranks = ranks](int of, const std::string& key,
                                              fabric::Bytes& value) {
      if (of != 1 || !absl::StrContains(key, "row")) return;
      fabric::JobRow row(rank);
      row.Append({}, ranks);
      value = fabric::EncodeRow(row);
    };
    for (const HandshakeResult& met : MeetAll(job, {0, 1})) {
      EXPECT_TRUE(absl::IsFailedPrecondition(met.status)) << met.status;
      EXPECT_THAT(std::string(met.status.message()),
                  HasSubstr("the row of rank 1 is of rank "));
      // Nothing of it is believed, and what the other found is known.
      EXPECT_EQ(met.matrix.WhyNot(1, 0).code(), met.status.code());
      EXPECT_EQ(met.matrix.Chosen(0, 1), Native());
    }
  }
}

// A card that says it is of another host: within one, fd would work.
TEST(Handshake, BetweenHostsRefusesDescriptorsWithoutATry) {
  LocalJob job(2);
  job.tamper = [](int rank, const std::string& key, fabric::Bytes& value) {
    if (rank != 1 || !absl::StrContains(key, "card")) return;
    fabric::JobCard card = Must(fabric::DecodeCard(value));
    card.boot_id[0] ^= 1;
    card.host_name = "elsewhere";
    value = fabric::EncodeCard(card);
  };
  for (const HandshakeResult& met : MeetAll(job, {0, 1})) {
    ASSERT_TRUE(met.status.ok()) << met.status;
    const absl::Status why = met.matrix.WhyNot(0, 1);
    EXPECT_THAT(std::string(why.message()),
                AllOf(HasSubstr("[other-host]"), HasSubstr("host elsewhere"),
                      HasSubstr("fabric: rank 1")));
  }
}

// Somebody else's memory behind the ticket: the nonce is not there.
TEST(Handshake, FindsMemoryThatIsNotTheOwners) {
  LocalJob job(2);
  job.tamper = [](int rank, const std::string& key, fabric::Bytes& value) {
    if (rank != 1 || !absl::StrContains(key, "card")) return;
    fabric::JobCard card = Must(fabric::DecodeCard(value));
    card.nonce[3] ^= 1;
    value = fabric::EncodeCard(card);
  };
  for (const HandshakeResult& met : MeetAll(job, {0, 1})) {
    ASSERT_TRUE(met.status.ok()) << met.status;
    EXPECT_THAT(std::string(met.matrix.WhyNot(0, 1).message()),
                AllOf(HasSubstr("does not hold what its owner wrote"),
                      HasSubstr("[wrong-data]")));
    EXPECT_TRUE(met.matrix.WhyNot(1, 0).ok());
  }
}

// As many streams of the ranks' process wait as there are hardware queues, which stops
// the copies of a handshake.
int MeetWhileStreamsWait(const std::vector<std::string>&) {
  const platform::Driver& driver = TestDriver();
  const Device device = Must(DeviceOf(0));
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  // Kinds are tried before, which is another wait.
  const Allocation memory = Must(
      Allocation::Create(device, {.size = 1, .sharing = job::JobSharing()}));
  const std::unique_ptr<FencePool> fences = Must(FencePool::Create(device));
  Fence fence = Must(fences->New());
  std::array<CUstream, 8> streams;
  for (CUstream& stream : streams) {
    EXPECT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    EXPECT_EQ(driver->cuMemsetD8Async(memory.address(), 1, 64, stream),
              CUDA_SUCCESS);
    EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    Must(fence.Wait(stream, 1));
  }
  // Without a deadline it would not return before.
  std::promise<void> met;
  std::thread lets_go([&] {
    met.get_future().wait_for(std::chrono::seconds(20));
    Must(fence.SignalFromHost(1));
  });
  LocalJob job(2);
  const auto first = [&device](int) { return device; };
  for (const HandshakeResult& result :
       MeetAll(job, {0, 1}, absl::Seconds(8), first)) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    const std::string why(result.matrix.AllReach().message());
    EXPECT_TRUE(absl::StrContains(why, "CUDA_DEVICE_MAX_CONNECTIONS")) << why;
  }
  met.set_value();
  lets_go.join();
  // What stood goes on, in memory that is still there.
  for (CUstream stream : streams) {
    EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kMeetWhileStreamsWait =
    RegisterChild("meet_while_streams_wait", &MeetWhileStreamsWait);

TEST(Handshake, ReturnsByItsDeadlineWhileAsManyStreamsWaitAsThereAreQueues) {
  EXPECT_EQ(Child::Start("meet_while_streams_wait", {},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

}  // namespace
}  // namespace vmm::testing
