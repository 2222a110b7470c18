// Events, within a process and between two.
#include <cstring>

#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

class Events : public Conformance {
 protected:
  Events() : address(Memory()), stream(MakeStream()), other(MakeStream()) {}
  const CUdeviceptr address;
  const CUstream stream;
  const CUstream other;
};

constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;

TEST_F(Events, NeverRecordedAreComplete) {
  const CUevent event = MakeEvent();
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

TEST_F(Events, CompleteWithTheWorkBeforeThem) {
  const CUevent event = MakeEvent();
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cu.cuStreamWriteValue64(other, address, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
}

TEST_F(Events, OrderOneStreamAfterAnother) {
  const CUevent event = MakeEvent();
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemsetD8Async(address + 8, 7, 8, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  const CUstream third = MakeStream();
  ASSERT_EQ(cu.cuStreamWaitEvent(third, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemcpyDtoDAsync(address + 16, address + 8, 8, third),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(third), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cu.cuStreamWriteValue64(other, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(third), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + 16, 8), std::vector<std::uint8_t>(8, 7));
}

TEST_F(Events, HaveKnownFlags) {
  CUevent event = nullptr;
  EXPECT_EQ(cu.cuEventCreate(&event, 0x100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS),
            CUDA_ERROR_INVALID_VALUE)
      << "interprocess events take no timing";
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, MakeEvent(), 7),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Events, ThatAreNoneAreInvalidHandles) {
  EXPECT_EQ(cu.cuEventDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuEventRecord(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuStreamWaitEvent(nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Events, OnlyInterprocessOnesHaveHandles) {
  CUipcEventHandle handle;
  EXPECT_EQ(cu.cuIpcGetEventHandle(&handle, MakeEvent()),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuIpcGetEventHandle(&handle, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuIpcGetEventHandle(&handle, MakeEvent(kShared)), CUDA_SUCCESS);
}

TEST_F(Events, CannotBeOpenedWhereTheyWereMade) {
  CUipcEventHandle handle;
  ASSERT_EQ(cu.cuIpcGetEventHandle(&handle, MakeEvent(kShared)), CUDA_SUCCESS);
  CUevent opened = nullptr;
  EXPECT_EQ(cu.cuIpcOpenEventHandle(&opened, handle),
            CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Events, AreNotOpenedFromOtherBytes) {
  CUipcEventHandle handle;
  std::memset(&handle, 7, sizeof(handle));
  CUevent opened = nullptr;
  EXPECT_EQ(cu.cuIpcOpenEventHandle(&opened, handle), CUDA_ERROR_MAP_FAILED);
}

// args: socket. Opens the event that comes over it, waits for it on the
// device, and says so; then records it anew.
int EventOpener(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  Checks checks;
  CUipcEventHandle handle;
  checks.ExpectTrue("a handle", ReceiveBytes(socket, &handle, sizeof(handle)));
  CUevent event = nullptr;
  checks.Expect("open", cu.cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  if (checks.failures() != 0) return checks.failures();
  CUipcEventHandle again;
  checks.Expect("pass on", cu.cuIpcGetEventHandle(&again, event),
                CUDA_ERROR_INVALID_HANDLE);
  checks.Expect("query", cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CUstream stream = nullptr;
  checks.Expect("stream", cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
  checks.Expect("wait", cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  checks.Expect("stream is held up", cu.cuStreamQuery(stream),
                CUDA_ERROR_NOT_READY);
  const char waiting = 'w';
  checks.ExpectTrue("told", SendBytes(socket, &waiting, 1));
  checks.Expect("synchronize", cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  checks.Expect("query again", cu.cuEventQuery(event), CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  checks.Expect("event synchronize", cu.cuEventSynchronize(event),
                CUDA_SUCCESS);
  checks.Expect("destroy", cu.cuEventDestroy(event), CUDA_SUCCESS);
  checks.Expect("destroy stream", cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  return checks.failures();
}
const bool kEventOpener = RegisterChild("event_opener", &EventOpener);

TEST_F(Events, OrderStreamsOfTwoProcesses) {
  const SocketPair sockets = MakeSocketPair();
  const CUevent event = MakeEvent(kShared);
  CUipcEventHandle handle;
  ASSERT_EQ(cu.cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  Child child = Child::Start("event_opener", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  ASSERT_TRUE(SendBytes(sockets.mine, &handle, sizeof(handle)));
  char waiting = 0;
  EXPECT_TRUE(ReceiveBytes(sockets.mine, &waiting, 1));
  ASSERT_EQ(cu.cuStreamWriteValue64(other, address, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
  CloseDescriptor(sockets.mine);
}

// In a process of its own: other tests may hold some.
int ManyEvents(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  std::vector<CUevent> events;
  CUevent event = nullptr;
  CUresult result = CUDA_SUCCESS;
  while (events.size() < 10'000 &&
         (result = cu.cuEventCreate(&event, kShared)) == CUDA_SUCCESS) {
    events.push_back(event);
  }
  Checks checks;
  checks.Expect("one too many", result, CUDA_ERROR_OUT_OF_MEMORY);
  // 4,095 and 4,096 were both measured.
  checks.ExpectTrue("4,095 or 4,096 of them",
                    events.size() == 4095 || events.size() == 4096);
  for (const CUevent made : events) {
    checks.Expect("destroy", cu.cuEventDestroy(made), CUDA_SUCCESS);
  }
  return checks.failures();
}
const bool kManyEvents = RegisterChild("many_events", &ManyEvents);

using Pitfall27 = Events;

TEST_F(Pitfall27, InterprocessEventsRunOutAfterFourThousand) {
  EXPECT_EQ(Child::Start("many_events", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
