// Events of the host-memory driver that another process has made.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"

namespace vmm::testing {
namespace {

constexpr unsigned kShared = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

using HostSharedEvents = Conformance;

// In a forked child: says so, and lives until the other end of `socket` closes.
void Outlive(int socket) {
  char byte = 0;
  SendBytes(socket, &byte, 1);
  ReceiveBytes(socket, &byte, 1);
}

// args: socket, and that of a child to fork, if any. Makes an event that is not
// done, and sends it. When told to, lets it be done, destroys it, puts another in its place, says so, and waits for its end.
int RecordsForEver(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  CUdeviceptr gate = 0;
  CUevent event = nullptr;
  CUstream stream = nullptr;
  CUstream opener = nullptr;
  CUipcEventHandle handle{};
  Checks checks;
  checks.Expect("gate", cu.cuMemAlloc(&gate, 16), CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, gate, 0, 16), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&opener, 1), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, kShared), CUDA_SUCCESS);
  checks.Expect("stand", cu.cuStreamWaitValue64(stream, gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  checks.Expect("handle", cu.cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  if (args.size() > 1) RunApart([&] { Outlive(std::stoi(args[1])); });
  SendBytes(socket, &handle, sizeof(handle));
  char order = 0;
  ReceiveBytes(socket, &order, 1);
  checks.Expect("done", cu.cuStreamWriteValue64(opener, gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("done", cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  checks.Expect("destroy", cu.cuEventDestroy(event), CUDA_SUCCESS);
  // Another one in its place, never done either.
  checks.Expect("event", cu.cuEventCreate(&event, kShared), CUDA_SUCCESS);
  checks.Expect("stand", cu.cuStreamWaitValue64(stream, gate + 8, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  SendBytes(socket, &order, 1);
  ReceiveBytes(socket, &order, 1);  // Killed meanwhile.
  return checks.failures();
}
const bool kRecordsForEver = RegisterChild("records-for-ever", &RecordsForEver);

TEST_F(HostSharedEvents, KeepNobodyWaitingWhoseEventHasGone) {
  const SocketPair sockets = MakeSocketPair();
  Child maker =
      Child::Start("records-for-ever", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  CUipcEventHandle handle{};
  CUevent event = nullptr;
  char byte = 0;
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &handle, sizeof(handle)));
  ASSERT_EQ(cu.cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  const CUstream stream = MakeStream();
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  ASSERT_TRUE(SendBytes(sockets.mine, &byte, 1));
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &byte, 1));
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventDestroy(event), CUDA_SUCCESS);
  maker.Kill();
  EXPECT_EQ(maker.Wait(), Child::kKilled);
  CloseDescriptor(sockets.mine);
}

TEST_F(HostSharedEvents, KeepNobodyWaitingWhoseProcessHasGone) {
  const SocketPair sockets = MakeSocketPair();
  Child maker =
      Child::Start("records-for-ever", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  CUipcEventHandle handle{};
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &handle, sizeof(handle)));
  // Its magic number, its file, its generation, its slot: each spoilt in turn.
  CUevent event = nullptr;
  for (const int word : {0, 8, 16, 24}) {
    CUipcEventHandle bad = handle;
    bad.reserved[word + 1] ^= 1;
    EXPECT_EQ(cu.cuIpcOpenEventHandle(&event, bad), CUDA_ERROR_MAP_FAILED)
        << word;
  }
  ASSERT_EQ(cu.cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  const CUstream stream = MakeStream();
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuIpcGetEventHandle(&handle, event), CUDA_ERROR_INVALID_HANDLE)
      << "another process's";
  maker.Kill();
  EXPECT_EQ(maker.Wait(), Child::kKilled);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventDestroy(event), CUDA_SUCCESS);
  CloseDescriptor(sockets.mine);
}

TEST_F(HostSharedEvents,
       KeepNobodyWaitingWhoseProcessHasGoneButForWhatItForked) {
  if (!CanFork()) GTEST_SKIP() << "this system has no fork";
  if (IsEmulated()) GTEST_SKIP() << kForksAllMemory;
  const SocketPair sockets = MakeSocketPair();
  const SocketPair of_forked = MakeSocketPair();
  Child maker = Child::Start(
      "records-for-ever",
      {std::to_string(sockets.childs), std::to_string(of_forked.childs)});
  CloseDescriptor(sockets.childs);
  CloseDescriptor(of_forked.childs);
  CUipcEventHandle handle{};
  CUevent event = nullptr;
  char byte = 0;
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &handle, sizeof(handle)));
  ASSERT_TRUE(ReceiveBytes(of_forked.mine, &byte, 1)) << "the forked child";
  ASSERT_EQ(cu.cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  const CUstream stream = MakeStream();
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  maker.Kill();
  EXPECT_EQ(maker.Wait(), Child::kKilled);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventDestroy(event), CUDA_SUCCESS);
  CloseDescriptor(of_forked.mine);
  CloseDescriptor(sockets.mine);
}

}  // namespace
}  // namespace vmm::testing
