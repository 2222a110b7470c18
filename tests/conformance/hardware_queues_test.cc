// What streams that wait stop of a process's other streams, which share a context's
// hardware queues. Measured on an H200, driver 580.159.04. In child processes: a
// driver asks once how many queues there are to be.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kOthers = 16;
constexpr std::size_t kPart = 128;      // Bytes of a stream.
constexpr std::size_t kRoom = 1 << 16;  // For all of them.
// For what is expected to stand, and for what is not.
constexpr std::chrono::milliseconds kMoment{100};
constexpr std::chrono::milliseconds kLong{30'000};

enum class Work {
  kFill,
  kValue,
  kFromHost,
  kWithinDevice,
  kToHost,
  kValueAfterToHost,
  kFunction,
  kRecord
};

// Streams that wait, and others.
class Streams {
 public:
  Streams(Checks& checks, std::size_t waiting)
      : cu_(DriverWithContext()),
        checks_(checks),
        waiting_(waiting),
        others_(kOthers) {
    void* host = nullptr;
    Expect("cuMemHostAlloc", cu_.cuMemHostAlloc(&host, kRoom, 0));
    word_ = static_cast<std::uint64_t*>(host);
    *word_ = 0;
    Expect("cuMemAlloc", cu_.cuMemAlloc(&memory_, kRoom));
    Expect("cuEventCreate",
           cu_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    for (auto* streams : {&waiting_, &others_}) {
      for (CUstream& stream : *streams) {
        Expect("cuStreamCreate",
               cu_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        Submit(Work::kFill, stream);
      }
    }
    Sync();
  }

  // Has the streams wait, all for a value or all but one for an event behind that,
  // after they copied to the host or filled. How many of the others then stand with
  // `work`, and goes on.
  // `all`: whether it is expected of them; otherwise those that are slow are waited
  // for.
  std::size_t ThatStand(Work work, Work before, bool by_event, bool all) {
    for (CUstream stream : waiting_) Submit(before, stream);
    if (work == Work::kValueAfterToHost) {
      for (CUstream stream : others_) Submit(Work::kToHost, stream);
    }
    Sync();
    ++round_;
    for (CUstream stream : waiting_) {
      if (by_event && stream != waiting_.front()) {
        Expect("cuStreamWaitEvent", cu_.cuStreamWaitEvent(stream, event_, 0));
        // A driver may keep the wait for itself until work comes.
        Submit(before, stream);
        continue;
      }
      Wait(stream);
      if (by_event) {
        Expect("cuEventRecord", cu_.cuEventRecord(event_, stream));
      }
    }
    for (CUstream stream : others_) Submit(work, stream);
    return CountAndGoOn(all ? kMoment : kLong);
  }

  // The same of others that have `work` before the streams wait.
  std::size_t ThatStandWithEarlier(Work work, Work before) {
    for (CUstream stream : waiting_) Submit(before, stream);
    Sync();
    ++round_;
    for (CUstream stream : others_) Submit(work, stream);
    for (CUstream stream : waiting_) Wait(stream);
    return CountAndGoOn(kLong);
  }

 private:
  static CUdeviceptr Address(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
  }
  void Expect(const char* what, CUresult result) {
    checks_.Expect(what, result, CUDA_SUCCESS);
  }

  // In a part of the memory that is the stream's own: nobody orders them.
  void Submit(Work work, CUstream stream) {
    const std::size_t part =
        parts_.emplace(stream, kPart * (parts_.size() + 1)).first->second;
    const CUdeviceptr here = memory_ + part;
    auto* const on_host = reinterpret_cast<std::uint8_t*>(word_) + part;
    switch (work) {
      case Work::kFill:
        return Expect("fill", cu_.cuMemsetD8Async(here, 1, 64, stream));
      case Work::kValue:
      case Work::kValueAfterToHost:
        return Expect("value", cu_.cuStreamWriteValue64(stream, here, 1, 0));
      case Work::kFromHost:
        return Expect("from host",
                      cu_.cuMemcpyHtoDAsync(here, on_host, 64, stream));
      case Work::kWithinDevice:
        return Expect("within the device",
                      cu_.cuMemcpyDtoDAsync(here, here + 64, 64, stream));
      case Work::kToHost:
        return Expect("to host",
                      cu_.cuMemcpyDtoHAsync(on_host, here, 64, stream));
      case Work::kFunction:
        return Expect("function", cu_.cuLaunchHostFunc(
                                      stream, [](void*) {}, nullptr));
      case Work::kRecord: {
        CUevent event = nullptr;
        Expect("cuEventCreate",
               cu_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        Expect("record", cu_.cuEventRecord(event, stream));
        return Expect("cuEventDestroy", cu_.cuEventDestroy(event));
      }
    }
  }

  void Wait(CUstream stream) {
    Expect("cuStreamWaitValue64",
           cu_.cuStreamWaitValue64(stream, Address(word_), round_,
                                   CU_STREAM_WAIT_VALUE_GEQ));
  }

  std::size_t CountAndGoOn(std::chrono::milliseconds patience) {
    const std::size_t standing = CountStanding(patience);
    std::atomic_ref<std::uint64_t>(*word_).store(round_);
    Sync();
    return standing;
  }

  // After `patience`, or once none does.
  std::size_t CountStanding(std::chrono::milliseconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    std::size_t standing = 0;
    do {
      std::this_thread::yield();
      standing = 0;
      for (CUstream stream : others_) {
        standing += cu_.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY ? 1 : 0;
      }
    } while (standing != 0 && std::chrono::steady_clock::now() < end);
    return standing;
  }

  void Sync() {
    for (const auto* streams : {&waiting_, &others_}) {
      for (CUstream stream : *streams) {
        Expect("cuStreamSynchronize", cu_.cuStreamSynchronize(stream));
      }
    }
  }

  const platform::DriverTable& cu_;
  Checks& checks_;
  std::vector<CUstream> waiting_;
  std::vector<CUstream> others_;
  std::map<CUstream, std::size_t> parts_;  // Bytes from the beginning.
  std::uint64_t* word_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUevent event_ = nullptr;
  std::uint64_t round_ = 0;
};

struct Case {
  const char* what;
  Work work;
  bool behind_fills;   // Stands behind as many waits as there are queues...
  bool behind_copies;  // ...whose streams copied to the host last.
};
constexpr std::array kCases = {
    Case{"fills", Work::kFill, true, false},
    Case{"values", Work::kValue, true, false},
    Case{"copies from the host", Work::kFromHost, true, false},
    Case{"copies within the device", Work::kWithinDevice, true, false},
    Case{"copies to the host", Work::kToHost, false, true},
    Case{"values after copies to the host", Work::kValueAfterToHost, false,
         true},
    Case{"host functions", Work::kFunction, false, false},
    Case{"records of events", Work::kRecord, false, false},
};

// How many streams wait, and whether they copied to the host and wait for events.
int SeeWhatStands(const std::vector<std::string>& args) {
  Checks checks;
  Streams streams(checks, std::stoul(args[0]));
  const bool copied = args[1] == "copied";
  for (const Case& each : kCases) {
    const bool all = copied ? each.behind_copies : each.behind_fills;
    const std::size_t standing =
        streams.ThatStand(each.work, copied ? Work::kToHost : Work::kFill,
                          /*by_event=*/args[2] == "events", all);
    checks.ExpectTrue(each.what, standing == (all ? kOthers : 0));
  }
  return checks.failures();
}
const bool kSeeWhatStands = RegisterChild("see_what_stands", &SeeWhatStands);

void ExpectStands(const char* waiting, const char* before, const char* by,
                  const char* connections, const char* mps = "0") {
  EXPECT_EQ(Child::Start("see_what_stands", {waiting, before, by},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", connections},
                          {"VMMSHARE_HOST_MPS", mps}})
                .Wait(),
            0);
}

TEST(HardwareQueues, AsManyWaitsAsThereAreStopAllButCopiesToTheHost) {
  ExpectStands("8", "filled", "values", "8");
  ExpectStands("8", "filled", "events", "8");
  ExpectStands("32", "filled", "values", "32");
  ExpectStands("40", "filled", "values", "32");
}

TEST(HardwareQueues, OfStreamsThatCopiedToTheHostStopSuchCopies) {
  ExpectStands("8", "copied", "values", "8");
  ExpectStands("32", "copied", "values", "32");
}

// What a queue is: no work of it stands behind later work.
int SeeThatEarlierWorkGoesOn(const std::vector<std::string>& args) {
  Checks checks;
  Streams streams(checks, std::stoul(args[0]));
  for (const Case& each : kCases) {
    for (Work before : {Work::kFill, Work::kToHost}) {
      checks.ExpectTrue(each.what,
                        streams.ThatStandWithEarlier(each.work, before) == 0);
    }
  }
  return checks.failures();
}
const bool kSeeThatEarlierWorkGoesOn =
    RegisterChild("see_that_earlier_work_goes_on", &SeeThatEarlierWorkGoesOn);

TEST(HardwareQueues, NothingStandsBehindALaterWait) {
  EXPECT_EQ(Child::Start("see_that_earlier_work_goes_on", {"8"},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

// Behind work that has not begun, eight streams wait: for an event that it records,
// or behind the NULL stream for a value that is there.
int WaitBehindWork(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  const auto expect = [&checks](const char* what, CUresult result) {
    checks.Expect(what, result, CUDA_SUCCESS);
  };
  const bool by_event = args[0] == "event";
  const auto make = [&] {
    CUstream stream = nullptr;
    expect("cuStreamCreate",
           cu.cuStreamCreate(
               &stream, by_event ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    return stream;
  };
  void* word = nullptr;
  expect("cuMemHostAlloc", cu.cuMemHostAlloc(&word, 64, 0));
  *static_cast<std::uint64_t*>(word) = 1;
  CUdeviceptr memory = 0;
  expect("cuMemAlloc", cu.cuMemAlloc(&memory, 64));
  CUevent event = nullptr;
  expect("cuEventCreate", cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));

  CUstream const first = by_event ? make() : nullptr;
  static std::atomic<bool> go = false;
  const CUhostFn wait = [](void*) {
    while (!go) std::this_thread::yield();
  };
  expect("cuLaunchHostFunc", cu.cuLaunchHostFunc(first, wait, nullptr));
  expect("fill", cu.cuMemsetD8Async(memory, 1, 64, first));
  expect("cuEventRecord", cu.cuEventRecord(event, first));
  for (int i = 0; i < 8; ++i) {
    CUstream const stream = make();
    expect("wait", by_event ? cu.cuStreamWaitEvent(stream, event, 0)
                            : cu.cuStreamWaitValue64(
                                  stream, reinterpret_cast<CUdeviceptr>(word),
                                  1, CU_STREAM_WAIT_VALUE_GEQ));
  }
  go = true;
  const auto end = std::chrono::steady_clock::now() + kLong;
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    result = cu.cuStreamQuery(first);
  }
  expect("cuStreamQuery", result);
  return checks.failures();
}
const bool kWaitBehindWork = RegisterChild("wait_behind_work", &WaitBehindWork);

TEST(HardwareQueues, WaitsDoNotStopWhatTheyAreBehind) {
  for (const char* kind : {"event", "null"}) {
    EXPECT_EQ(Child::Start("wait_behind_work", {kind},
                           {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                  .Wait(),
              0)
        << kind;
  }
}

TEST(HardwareQueues, AreEightWithoutANumberAndTwoUnderMps) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a real one has an MPS to be with";
  for (const char* none : {"", "0", "33", "many"}) {
    ExpectStands("8", "filled", "values", none);
  }
  ExpectStands("2", "filled", "values", "", /*mps=*/"1");
}

}  // namespace
}  // namespace vmm::testing
