// The host-memory driver where the system gives it nothing more: no descriptors, no
// threads, no addresses; and files and objects that others have made.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/check.h"
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

int HasNoDescriptors(const std::vector<std::string>&) {
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
  return checks.failures();
}
const bool kHasNoDescriptors =
    RegisterChild("has-no-descriptors", &HasNoDescriptors);

TEST(HostSystem, WithoutDescriptorsEachCallSaysSoAndLeavesNothing) {
  EXPECT_EQ(Child::Start("has-no-descriptors", {}).Wait(), 0);
}

// More than any process has addresses for; the machine's devices have it.
constexpr std::size_t kHuge = std::size_t{1} << 47;

int HasNoAddresses(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  CUdeviceptr address = 0;
  void* data = nullptr;
  const VmmshareHostLedger before = LedgerNow();
  Checks checks;
  checks.Expect("cuMemAlloc", cu.cuMemAlloc(&address, kHuge), kNoMemory);
  checks.Expect("cuMemHostAlloc", cu.cuMemHostAlloc(&data, kHuge, 0),
                kNoMemory);
  checks.Expect("cuMemAllocAsync", cu.cuMemAllocAsync(&address, kHuge, nullptr),
                kNoMemory);
  checks.Expect("cuMemAddressReserve",
                cu.cuMemAddressReserve(&address, kHuge, 0, 0, 0), kNoMemory);
  checks.Expect(
      "aligned to more than all",
      cu.cuMemAddressReserve(&address, kHuge, std::size_t{1} << 62, 0, 0),
      kNoMemory);
  checks.Expect(
      "more than all",
      cu.cuMemAddressReserve(&address, std::size_t{0} - kGranule, 0, 0, 0),
      kNoMemory);
  const VmmshareHostLedger after = LedgerNow();
  checks.ExpectTrue("nothing is left of it",
                    std::memcmp(&before, &after, sizeof(after)) == 0 &&
                        address == 0 && data == nullptr);
  std::size_t free = 0;
  std::size_t total = 0;
  checks.Expect("cuMemGetInfo", cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  checks.ExpectTrue("all is free", free == total && total == 2 * kHuge);
  return checks.failures();
}
const bool kHasNoAddresses = RegisterChild("has-no-addresses", &HasNoAddresses);

TEST(HostSystem, WithoutAddressesEachCallSaysSoAndLeavesNothing) {
  EXPECT_EQ(
      Child::Start("has-no-addresses", {},
                   {{"VMMSHARE_HOST_INSTANCE", NameOfItsOwn("no-addresses")},
                    {"VMMSHARE_HOST_MEMORY", "262144G"}})
          .Wait(),
      0);
}

class HostAddresses : public Conformance {
 protected:
  CUdeviceptr ReserveAt(std::size_t size, std::size_t alignment,
                        CUdeviceptr hint) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAddressReserve(&address, size, alignment, hint, 0),
              CUDA_SUCCESS);
    return address;
  }
};

TEST_F(HostAddresses, AreThoseAskedForIfTheyAreFree) {
  // Its middle: other threads are given what lies at an edge.
  constexpr std::size_t kRoom = std::size_t{1} << 32;
  const CUdeviceptr room = ReserveAt(kRoom, 0, 0);
  ASSERT_EQ(cu.cuMemAddressFree(room, kRoom), CUDA_SUCCESS);
  const CUdeviceptr hint = room + kRoom / 2;
  EXPECT_EQ(ReserveAt(kGranule, 0, hint), hint);
  const CUdeviceptr elsewhere = ReserveAt(kGranule, 0, hint);
  EXPECT_NE(elsewhere, hint) << "taken by now";
  EXPECT_EQ(cu.cuMemAddressFree(elsewhere, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(hint, kGranule), CUDA_SUCCESS);
}

TEST_F(HostAddresses, MayBeAlignedToALargePartOfThem) {
  constexpr std::size_t kAlignment = std::size_t{1} << 40;
  const CUdeviceptr address = ReserveAt(kGranule, kAlignment, 0);
  EXPECT_NE(address, 0u);
  EXPECT_EQ(address % kAlignment, 0u);
  const CUdeviceptr next = ReserveAt(kGranule, kAlignment, 0);
  EXPECT_NE(next, address);
  EXPECT_EQ(next % kAlignment, 0u);
  EXPECT_EQ(cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(next, kGranule), CUDA_SUCCESS);
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
  platform::Check(pthread_getattr_default_np(&before) == 0 &&
                      pthread_getattr_default_np(&huge) == 0 &&
                      pthread_attr_setstacksize(&huge, kHuge) == 0 &&
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

TEST(HostSystem, WithoutThreadsWorkIsRefusedAndTheStreamLives) {
  EXPECT_EQ(Child::Start("has-no-threads", {}).Wait(), 0);
}

int KeepsStandardStreamsClosed(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  close(STDIN_FILENO);
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.ExpectTrue("nothing is standard input",
                    fcntl(STDIN_FILENO, F_GETFD) == -1);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kKeepsClosed =
    RegisterChild("keeps-standard-streams-closed", &KeepsStandardStreamsClosed);

TEST(HostSystem, MemoryIsNoStandardStream) {
  EXPECT_EQ(Child::Start("keeps-standard-streams-closed", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
