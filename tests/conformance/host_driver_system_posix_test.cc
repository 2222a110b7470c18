// The host-memory driver where the system gives it nothing more: no descriptors, no
// threads, no room.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/check.h"
#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"
#include "tests/support/descriptor_limit_posix.h"

namespace vmm::testing {
namespace {

constexpr CUresult kNoMemory = CUDA_ERROR_OUT_OF_MEMORY;
constexpr CUresult kNoSystem = CUDA_ERROR_OPERATING_SYSTEM;

struct Result {
  const char* call;
  CUresult got;
  CUresult wanted;
};

// args: a legacy handle.
int HasNoDescriptors(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  const CUmemAllocationProp host = Properties(0, CU_MEM_LOCATION_TYPE_HOST);
  const CUmemPoolProps shared = PoolProperties(kFd);
  CUdeviceptr block = 0;
  CUmemoryPool pool = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  void* data = nullptr;
  CUevent event = nullptr;
  int fd = -1;
  Checks checks;
  checks.Expect("block", cu.cuMemAlloc(&block, kGranule), CUDA_SUCCESS);
  checks.Expect("pool", cu.cuMemPoolCreate(&pool, &shared), CUDA_SUCCESS);
  const VmmshareHostLedger before = LedgerNow();
  const auto managed =
      FindExport<decltype(::cuMemAllocManaged)>("cuMemAllocManaged");
  const auto range = [&] {
    return cu.cuMemGetHandleForAddressRange(
        &fd, block, kGranule, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  };
  const auto legacy = FromText<CUipcMemHandle>(args[0]);
  CUmemoryPool none = nullptr;
  std::optional<DescriptorLimit> limit(0);
  const std::vector<Result> results = {
      {"cuMemCreate", cu.cuMemCreate(&handle, kGranule, &prop, 0), kNoSystem},
      {"cuMemCreate, host", cu.cuMemCreate(&handle, kGranule, &host, 0),
       kNoMemory},
      {"cuMemAlloc", cu.cuMemAlloc(&address, 1), kNoSystem},
      {"cuMemHostAlloc", cu.cuMemHostAlloc(&data, 1, 0), kNoMemory},
      {"cuMemAllocManaged", managed(&address, 1, CU_MEM_ATTACH_HOST),
       kNoMemory},
      {"cuMemAllocAsync", cu.cuMemAllocAsync(&address, 1, nullptr), kNoSystem},
      {"cuMemPoolCreate", cu.cuMemPoolCreate(&none, &shared), kNoSystem},
      {"cuMemPoolExportToShareableHandle", ExportPoolTo(cu, &fd, pool),
       kNoSystem},
      {"cuMemGetHandleForAddressRange", range(), kNoSystem},
      {"cuEventCreate", cu.cuEventCreate(&event, 6), kNoSystem},
      {"cuIpcOpenMemHandle", cu.cuIpcOpenMemHandle(&address, legacy, 1),
       kInvalid},
  };
  limit.reset();
  for (const Result& r : results) checks.Expect(r.call, r.got, r.wanted);
  const VmmshareHostLedger after = LedgerNow();
  checks.ExpectTrue("nothing is left of it",
                    std::memcmp(&before, &after, sizeof(after)) == 0);
  checks.ExpectTrue("nothing was given",
                    handle == 0 && address == 0 && data == nullptr &&
                        fd == -1 && none == nullptr && event == nullptr);
  checks.Expect("again", cu.cuEventCreate(&event, 6), CUDA_SUCCESS);
  checks.Expect("again", ExportPoolTo(cu, &fd, pool), CUDA_SUCCESS);
  checks.Expect("again", cu.cuIpcOpenMemHandle(&address, legacy, 1),
                CUDA_SUCCESS);
  return checks.failures();
}
const bool kHasNoDescriptors =
    RegisterChild("has-no-descriptors", &HasNoDescriptors);

class HostSystem : public Conformance {};

TEST_F(HostSystem, WithoutDescriptorsEachCallSaysSoAndLeavesNothing) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("has-no-descriptors", {ToText(handle)}).Wait(), 0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

// Files of no more than a page, and the signal of the limit is no end.
int HasNoRoom(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUevent event = nullptr;
  Checks checks;
  checks.Expect("before", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  handle = 0;
  rlimit before{};
  platform::Check(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit() failed");
  rlimit little = before;
  signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {4096, 0}) {
    little.rlim_cur = bytes;
    platform::Check(setrlimit(RLIMIT_FSIZE, &little) == 0,
                    "setrlimit() failed");
    const CUresult created = cu.cuMemCreate(&handle, kGranule, &prop, 0);
    const CUresult recorded = cu.cuEventCreate(&event, 6);
    platform::Check(setrlimit(RLIMIT_FSIZE, &before) == 0,
                    "setrlimit() failed");
    checks.Expect("memory", created, kNoSystem);
    checks.Expect("event", recorded, kNoSystem);
  }
  checks.ExpectTrue("nothing was given", handle == 0 && event == nullptr);
  checks.Expect("again", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("again", cu.cuEventCreate(&event, 6), CUDA_SUCCESS);
  return checks.failures();
}
const bool kHasNoRoom = RegisterChild("has-no-room", &HasNoRoom);

TEST_F(HostSystem, WithoutRoomForFilesMemoryAndEventsAreRefused) {
  EXPECT_EQ(Child::Start("has-no-room", {}).Wait(), 0);
}

// Threads with more stack than there are addresses.
int HasNoThreads(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  CUdeviceptr block = 0;
  CUstream busy = nullptr;
  CUstream idle = nullptr;
  CUevent event = nullptr;
  std::uint64_t word = 7;
  Checks checks;
  checks.Expect("block", cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, 2), CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, block, 0, 64), CUDA_SUCCESS);
  checks.Expect("busy", cu.cuStreamCreate(&busy, 0), CUDA_SUCCESS);
  checks.Expect("idle", cu.cuStreamCreate(&idle, 0), CUDA_SUCCESS);
  checks.Expect("wait", cu.cuStreamWaitValue64(nullptr, block, 1, 0),
                CUDA_SUCCESS);
  pthread_attr_t before{};
  pthread_attr_t huge{};
  platform::Check(
      pthread_getattr_default_np(&before) == 0 &&
          pthread_getattr_default_np(&huge) == 0 &&
          pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0 &&
          pthread_setattr_default_np(&huge) == 0,
      "the stacks of threads cannot be set");
  checks.Expect("fill", cu.cuMemsetD8Async(block + 8, 1, 8, idle), kNoMemory);
  checks.Expect("copy", cu.cuMemcpyDtoHAsync(&word, block, 8, idle), kNoMemory);
  checks.Expect("record", cu.cuEventRecord(event, idle), kNoMemory);
  platform::Check(pthread_setattr_default_np(&before) == 0,
                  "the stacks of threads cannot be set back");
  checks.Expect("nothing to wait for", cu.cuEventQuery(event), CUDA_SUCCESS);
  CUstream other = nullptr;
  checks.Expect("other", cu.cuStreamCreate(&other, 1), CUDA_SUCCESS);
  checks.Expect("go", cu.cuStreamWriteValue64(other, block, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("idle by now", cu.cuStreamSynchronize(idle), CUDA_SUCCESS);
  checks.Expect("copy again", cu.cuMemcpyDtoHAsync(&word, block, 8, idle),
                CUDA_SUCCESS);
  checks.ExpectTrue("the word", word == 1);
  return checks.failures();
}
const bool kHasNoThreads = RegisterChild("has-no-threads", &HasNoThreads);

TEST_F(HostSystem, WithoutThreadsWorkIsRefusedAndTheStreamLives) {
  EXPECT_EQ(Child::Start("has-no-threads", {}).Wait(), 0);
}

// args: socket. Fills memory, and closes all descriptors but that.
int KeepsMappings(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  CUdeviceptr block = 0;
  Checks checks;
  checks.Expect("block", cu.cuMemAlloc(&block, 4 * kGranule), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, block, 1, 4 * kGranule), CUDA_SUCCESS);
  for (int fd = STDERR_FILENO + 1; fd < 256; ++fd) {
    if (fd != socket) close(fd);
  }
  char byte = 0;
  SendBytes(socket, &byte, 1);
  ReceiveBytes(socket, &byte, 1);  // Killed meanwhile.
  return checks.failures();
}
const bool kKeepsMappings = RegisterChild("keeps-mappings", &KeepsMappings);

TEST_F(HostSystem, MemoryWithoutADescriptorIsCountedWhileItIsMapped) {
  const std::size_t before = FreeMemory();
  const SocketPair sockets = MakeSocketPair();
  Child child =
      Child::Start("keeps-mappings", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  char byte = 0;
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &byte, 1));
  EXPECT_EQ(FreeMemory(), before - 4 * kGranule);
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);
  EXPECT_EQ(FreeMemory(), before);
  CloseDescriptor(sockets.mine);
}

int KeepsStandardStreamsClosed(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle imported = 0;
  CUcontext context = nullptr;
  CUevent event = nullptr;
  Checks checks;
  close(STDIN_FILENO);
  const auto step = [&](const char* what, CUresult got) {
    checks.Expect(what, got, CUDA_SUCCESS);
    checks.ExpectTrue(
        (std::string(what) + ": nothing is standard input").c_str(),
        fcntl(STDIN_FILENO, F_GETFD) == -1);
  };
  step("cuInit", cu.cuInit(0));
  step("create", cu.cuMemCreate(&handle, kGranule, &prop, 0));
  step("retain", cu.cuDevicePrimaryCtxRetain(&context, 0));
  step("set", cu.cuCtxSetCurrent(context));
  step("event", cu.cuEventCreate(
                    &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  // An export is the program's, wherever it is.
  int exported = -1;
  checks.Expect("export", ExportTo(cu, &exported, handle), CUDA_SUCCESS);
  const int fd = fcntl(exported, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(exported);
  step("import",
       cu.cuMemImportFromShareableHandle(
           &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
           kFd));
  step("release", cu.cuMemRelease(imported));
  step("release", cu.cuMemRelease(handle));
  return checks.failures();
}
const bool kKeepsClosed =
    RegisterChild("keeps-standard-streams-closed", &KeepsStandardStreamsClosed);

TEST_F(HostSystem, NothingOfTheDriversIsAStandardStream) {
  EXPECT_EQ(Child::Start("keeps-standard-streams-closed", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
