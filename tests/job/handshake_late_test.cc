// Handshakes whose device is late, or does not come to write. The device is the
// driver's word: what it says of a stream is changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fabric/exchange.h"
#include "tests/gpu/changed_driver.h"
#include "tests/job/local_job.h"
#include "tests/support/child.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "vmm/job/handshake.h"
#include "vmm/memory/allocation.h"

namespace vmm::testing {
namespace {

using job::HandshakeResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Of the ranks, which are threads.
struct Lateness {
  absl::Time context_by;  // When a context is had, or a read, at the earliest.
  absl::Time read_by;
  bool stands_after_a_read = false;  // What is copied to the device.
};
Lateness lateness;
thread_local bool was_asked = false;
thread_local bool has_read = false;
std::atomic<int> copies_that_stand = 0;

void SleepUntil(absl::Time time) { absl::SleepFor(time - absl::Now()); }

// No copy is there at the first look, as on a GPU.
CUresult CUDAAPI QueryLate(CUstream stream) {
  was_asked = !was_asked;
  if (was_asked || (lateness.stands_after_a_read && has_read)) {
    return CUDA_ERROR_NOT_READY;
  }
  return TestDriver()->cuStreamQuery(stream);
}

CUresult CUDAAPI RetainLate(CUcontext* context, CUdevice device) {
  SleepUntil(lateness.context_by);
  return TestDriver()->cuDevicePrimaryCtxRetain(context, device);
}

CUresult CUDAAPI WriteLate(CUdeviceptr to, const void* from, std::size_t size,
                           CUstream stream) {
  if (lateness.stands_after_a_read && has_read) ++copies_that_stand;
  return TestDriver()->cuMemcpyHtoDAsync(to, from, size, stream);
}

CUresult CUDAAPI ReadLate(void* to, CUdeviceptr from, std::size_t size,
                          CUstream stream) {
  SleepUntil(lateness.read_by);
  has_read = true;
  return TestDriver()->cuMemcpyDtoHAsync(to, from, size, stream);
}

Device LateDevice() {
  platform::DriverTable table = TestDriver().table();
  table.cuStreamQuery = &QueryLate;
  table.cuDevicePrimaryCtxRetain = &RetainLate;
  table.cuMemcpyHtoDAsync = &WriteLate;
  table.cuMemcpyDtoHAsync = &ReadLate;
  Device device = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  // Kinds are tried before.
  Must(Allocation::Create(device, {.size = 1, .sharing = job::JobSharing()}));
  return device;
}

// By an exchange that has more time than the handshake.
std::vector<HandshakeResult> MeetOn(int ranks, const Device& device,
                                    absl::Time deadline) {
  LocalJob job(ranks);
  std::mutex mutex;
  std::map<int, HandshakeResult> results;
  job.RunAll([&](int rank, fabric::Exchange&) {
    fabric::ExchangeCallbacks patient = job.Callbacks(rank);
    const auto later = [] { return absl::Now() + absl::Seconds(30); };
    patient.fence = [fence = patient.fence, later](absl::Time) {
      return fence(later());
    };
    patient.get = [get = patient.get, later](int of, const std::string& key,
                                             absl::Time) {
      return get(of, key, later());
    };
    fabric::CallbackExchange exchange(std::move(patient));
    HandshakeResult result = job::Handshake(device, exchange, {}, deadline);
    const std::lock_guard<std::mutex> lock(mutex);
    results.emplace(rank, std::move(result));
  });
  std::vector<HandshakeResult> list;
  for (auto& [rank, result] : results) list.push_back(std::move(result));
  return list;
}

// In a process of its own: had something stood, its memory would stay.
int MeetLate(const std::vector<std::string>&) {
  const Device device = LateDevice();
  constexpr absl::Duration kTime = absl::Seconds(10);
  const absl::Time begin = absl::Now();
  // Behind the quarter that is for a rank's own memory, and what is for tries.
  lateness.context_by = begin + kTime * 0.3;
  lateness.read_by = begin + kTime * 0.85;
  for (const HandshakeResult& met : MeetOn(2, device, begin + kTime)) {
    EXPECT_TRUE(met.status.ok()) << met.status;
    EXPECT_TRUE(met.matrix.AllReach().ok()) << met.matrix.AllReach();
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kMeetLate = RegisterChild("meet_late", &MeetLate);

TEST(HandshakeLate, ACopyHasTimeWhateverCameBeforeIt) {
  EXPECT_EQ(Child::Start("meet_late", {}).Wait(), 0);
}

int MeetAndStand(const std::vector<std::string>&) {
  const Device device = LateDevice();
  lateness.stands_after_a_read = true;
  constexpr int kRanks = 4;
  for (const HandshakeResult& met :
       MeetOn(kRanks, device, absl::Now() + absl::Seconds(12))) {
    EXPECT_TRUE(met.status.ok()) << met.status;
    for (const auto& [importer, owner] : {std::pair{0, 1}, {0, 2}, {3, 1}}) {
      EXPECT_THAT(std::string(met.matrix.WhyNot(importer, owner).message()),
                  AllOf(HasSubstr(absl::StrCat("rank ", importer, " (host ")),
                        HasSubstr("has not done a copy to trial memory"),
                        HasSubstr("[no-context]"), Not(HasSubstr("has died"))));
    }
  }
  EXPECT_EQ(copies_that_stand, kRanks);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kMeetAndStand = RegisterChild("meet_and_stand", &MeetAndStand);

TEST(HandshakeLate, OfADeviceThatDoesNotWriteItsRankIsToldAndNoOwner) {
  EXPECT_EQ(Child::Start("meet_and_stand", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
