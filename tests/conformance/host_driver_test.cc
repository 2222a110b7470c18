#include "tests/conformance/host_driver_test.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <map>
#include <thread>

#include "platform/base/check.h"
#include "platform/os/library.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"
#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

// These tests are about the host-memory driver, whichever driver a run is for.
// Children inherit the choice.
[[maybe_unused]] const bool kOnHostMemory = [] {
  UseTheHostMemoryDriver();
  return true;
}();

}  // namespace

void* HostDriverExport(const char* name) {
  static const absl::StatusOr<platform::Library> library =
      platform::Library::OpenPath(HostDriverPath());
  if (!library.ok()) platform::Die(library.status().ToString());
  void* const found = library->Find(name);
  platform::Check(found != nullptr, name);
  return found;
}

const HostFunctions& HostDriver() {
  static const HostFunctions functions = [] {
    const auto find = [](auto* function, const char* name) {
      return reinterpret_cast<decltype(function)>(HostDriverExport(name));
    };
    HostFunctions f{};
    f.version = find(f.version, "vmmshareHostDriverVersion");
    f.ledger = find(f.ledger, "vmmshareHostLedger");
    f.fail = find(f.fail, "vmmshareHostFail");
    f.calls = find(f.calls, "vmmshareHostCalls");
    f.add_kernel = find(f.add_kernel, "vmmshareHostAddKernel");
    return f;
  }();
  return functions;
}

VmmshareHostLedger LedgerNow() {
  VmmshareHostLedger ledger{};
  EXPECT_EQ(HostDriver().ledger(&ledger, sizeof(ledger)), 0);
  return ledger;
}

namespace {

class HostDriverTest : public Conformance {
 protected:
  ~HostDriverTest() override { EXPECT_EQ(HostDriver().fail(nullptr), 0); }
};
using Budget = HostDriverTest;
using Injection = HostDriverTest;
using Ledger = HostDriverTest;

constexpr std::size_t kBudget = 64 * kMiB;  // Of the machines below.

// A machine that no other test sees.
std::map<std::string, std::string> Machine(
    const std::string& name, std::map<std::string, std::string> more = {}) {
  more["VMMSHARE_HOST_INSTANCE"] = HostInstanceName(name);
  more.emplace("VMMSHARE_HOST_MEMORY", std::to_string(kBudget));
  return more;
}

TEST_F(HostDriverTest, SaysWhatItIs) {
  EXPECT_GE(HostDriver().version(), 1);
  EXPECT_TRUE(TestDriver().is_host_memory());
}

// args: how many granules of the device must be free.
int FreeGranules(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  std::size_t free = 0;
  std::size_t total = 0;
  Checks checks;
  checks.Expect("cuMemGetInfo", cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  checks.ExpectTrue("the stated number of granules is free",
                    free / kGranule == std::stoul(args[0]));
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  checks.Expect("one byte more than is free",
                cu.cuMemCreate(&handle, free + kGranule, &prop, 0),
                CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect("all that is free", cu.cuMemCreate(&handle, free, &prop, 0),
                free == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  return checks.failures();
}
const bool kFreeGranules = RegisterChild("free_granules", &FreeGranules);

// args: socket, granules. Takes that much, reports, and waits for its end.
int Taker(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  const std::size_t size = std::stoul(args[1]) * kGranule;
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr block = 0;
  Checks checks;
  checks.Expect("create", cu.cuMemCreate(&handle, size, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("cuMemAlloc", cu.cuMemAlloc(&block, 1), CUDA_SUCCESS);
  int fd = -1;
  checks.Expect("export", ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  if (checks.failures() != 0) return checks.failures();
  SendDescriptor(socket, fd);
  char end = 0;
  ReceiveBytes(socket, &end, 1);
  return 0;
}
const bool kTaker = RegisterChild("taker", &Taker);

std::string Granules(std::size_t taken) {
  return std::to_string(kBudget / kGranule - taken);
}

TEST(Budgets, AreSharedByTheProcessesOfAnInstanceAndBackAfterSigkill) {
  const auto machine = Machine("budget-shared");
  const SocketPair sockets = MakeSocketPair();
  int fd = -1;
  {
    Child taker =
        Child::Start("taker", {std::to_string(sockets.childs), "10"}, machine);
    CloseDescriptor(sockets.childs);
    ASSERT_TRUE(ReceiveDescriptor(sockets.mine, &fd));
    // Ten granules and a block of one.
    EXPECT_EQ(Child::Start("free_granules", {Granules(11)}, machine).Wait(), 0);
    // Another machine has all of its memory.
    EXPECT_EQ(
        Child::Start("free_granules", {Granules(0)}, Machine("budget-other"))
            .Wait(),
        0);
    taker.Kill();
    EXPECT_EQ(taker.Wait(), Child::kKilled);
  }
  // This process, which never loaded that machine's driver, holds ten by the
  // descriptor alone; the block died with its process.
  EXPECT_EQ(Child::Start("free_granules", {Granules(10)}, machine).Wait(), 0);
  CloseDescriptor(fd);
  EXPECT_EQ(Child::Start("free_granules", {Granules(0)}, machine).Wait(), 0);
  CloseDescriptor(sockets.mine);
}

// args: socket. Makes and releases memory until told to end.
int Churner(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  std::atomic<bool> ended = false;
  std::thread listener([&] {
    char byte = 0;
    SendBytes(socket, &byte, 1);
    ReceiveBytes(socket, &byte, 1);
    ended = true;
  });
  const CUmemAllocationProp prop = Properties();
  Checks checks;
  std::deque<CUmemGenericAllocationHandle> handles;
  while (!ended) {
    CUmemGenericAllocationHandle handle = 0;
    checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                  CUDA_SUCCESS);
    handles.push_back(handle);
    if (handles.size() < 16) continue;
    checks.Expect("release", cu.cuMemRelease(handles.front()), CUDA_SUCCESS);
    handles.pop_front();
  }
  listener.join();
  return checks.failures();
}
const bool kChurner = RegisterChild("churner", &Churner);

TEST_F(Budget, IsCountedRightWhileAnotherInstanceMakesAndReleases) {
  const SocketPair sockets = MakeSocketPair();
  Child churner = Child::Start("churner", {std::to_string(sockets.childs)},
                               Machine("churn"));
  CloseDescriptor(sockets.childs);
  char byte = 0;
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &byte, 1));
  const std::size_t before = FreeMemory();
  const CUmemAllocationProp prop = Properties();
  std::vector<CUmemGenericAllocationHandle> handles(16);
  for (CUmemGenericAllocationHandle& handle : handles) {
    ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(before - FreeMemory(), handles.size() * kGranule)
        << "count " << i;
  }
  ASSERT_TRUE(SendBytes(sockets.mine, &byte, 1));
  EXPECT_EQ(churner.Wait(), 0);
  for (const auto handle : handles) {
    EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  }
  CloseDescriptor(sockets.mine);
}

TEST_F(Budget, ManyAllocationsEndWithOutOfMemory) {
  std::size_t free = FreeMemory();
  const std::size_t piece = free / 4 / kGranule * kGranule;
  std::vector<CUmemGenericAllocationHandle> handles;
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = cu.cuMemCreate(&handle, piece, &prop, 0)) == CUDA_SUCCESS) {
    handles.push_back(handle);
    ASSERT_LE(handles.size(), 4u);
  }
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(handles.size(), 4u);
  // Given back, it can be had again: the budget is not used up by counting.
  ASSERT_EQ(cu.cuMemRelease(handles.back()), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemCreate(&handles.back(), piece, &prop, 0), CUDA_SUCCESS);
  for (const auto made : handles) {
    EXPECT_EQ(cu.cuMemRelease(made), CUDA_SUCCESS);
  }
}

TEST_F(Injection, FailsTheNthCallOnce) {
  ASSERT_EQ(HostDriver().fail("cuMemAddressReserve:2:OUT_OF_MEMORY"), 0);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  EXPECT_EQ(cu.cuMemAddressReserve(&first, kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressReserve(&second, kGranule, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(second, 0u) << "it does nothing else";
  EXPECT_EQ(cu.cuMemAddressReserve(&second, kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(HostDriver().calls("cuMemAddressReserve"), 3u);
  EXPECT_EQ(cu.cuMemAddressFree(first, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(second, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(HostDriver().calls("*"), 5u);
  EXPECT_EQ(HostDriver().calls("cuMemMap"), 0u);
  EXPECT_EQ(HostDriver().calls(nullptr), 0u);
}

TEST_F(Injection, FailsEveryCallFromTheNthOn) {
  ASSERT_EQ(HostDriver().fail("cuStreamQuery:2+:UNKNOWN"), 0);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_UNKNOWN);
  }
}

TEST_F(Injection, FailsTheNthCallOfAny) {
  ASSERT_EQ(HostDriver().fail("*:2:NOT_PERMITTED;cuCtxSynchronize:1:UNKNOWN"),
            0);
  int count = 0;
  EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(Injection, RefusesRulesItCannotUnderstand) {
  for (const char* rules :
       {"cuMemMap", "cuMemMap:3", "cuMemMap:0:UNKNOWN", "cuMemMap:x:UNKNOWN",
        "cuMemMap:1:NO_SUCH_RESULT", "cuMemMap:1:SUCCESS", "MemMap:1:UNKNOWN",
        "cuMemMap:+:UNKNOWN", "cuMemMap::UNKNOWN", "cuMemMap:1:UNKNOWN;;",
        "cuMemMapp:1:UNKNOWN", "cuMemMa:1:UNKNOWN", "cuMemAlloc_v2:1:UNKNOWN",
        "cuMemMap:1:UNKNOWN;cuNothing:1:UNKNOWN"}) {
    EXPECT_EQ(HostDriver().fail(rules), 1) << rules;
  }
}

TEST_F(Injection, FailsEachCallByItsOwnName) {
  const auto allocate =
      FindExport<decltype(::cuMemAllocHost)>("cuMemAllocHost_v2");
  void* data = nullptr;
  ASSERT_EQ(HostDriver().fail("cuMemAllocHost:1:OUT_OF_MEMORY"), 0);
  EXPECT_EQ(cu.cuMemHostAlloc(&data, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(data), CUDA_SUCCESS);
  EXPECT_EQ(allocate(&data, 64), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(allocate(&data, 64), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(data), CUDA_SUCCESS);
  EXPECT_EQ(HostDriver().calls("cuMemAllocHost"), 2u);
  EXPECT_EQ(HostDriver().calls("cuMemHostAlloc"), 1u);
  // What it counts as, its arguments tell.
  const auto copy = FindExport<decltype(::cuMemcpy)>("cuMemcpy");
  const CUdeviceptr address = Memory();
  std::uint64_t word = 7;
  ASSERT_EQ(HostDriver().fail("cuMemcpyDtoH:1:UNKNOWN"), 0);
  EXPECT_EQ(copy(reinterpret_cast<CUdeviceptr>(&word), address, sizeof(word)),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(word, 7u);
}

int FailsByEnvironment(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  checks.Expect("first", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_ERROR_NOT_SUPPORTED);
  checks.Expect("second", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  return checks.failures();
}
const bool kFailsByEnvironment =
    RegisterChild("fails_by_environment", &FailsByEnvironment);

TEST_F(Injection, CanComeFromTheEnvironment) {
  EXPECT_EQ(
      Child::Start("fails_by_environment", {},
                   {{"VMMSHARE_HOST_FAIL", "cuMemCreate:1:NOT_SUPPORTED"}})
          .Wait(),
      0);
}

TEST_F(Ledger, CountsEverythingThatIsHeld) {
  const VmmshareHostLedger before = LedgerNow();
  const CUmemGenericAllocationHandle handle = Create(2 * kGranule);
  Import(Export(handle));
  const CUdeviceptr address = Reserve(2 * kGranule);
  Map(address, handle, 2 * kGranule);
  MakeStream();
  MakeEvent();
  CUdeviceptr block = 0;
  void* host = nullptr;
  CUcontext context = nullptr;
  CUmemGenericAllocationHandle retained = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 5), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 5, 0), CUDA_SUCCESS);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&pooled, 5, pool, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemRetainAllocationHandle(&retained,
                                           reinterpret_cast<void*>(address)),
            CUDA_SUCCESS);
  const VmmshareHostLedger now = LedgerNow();
  EXPECT_EQ(now.handles, before.handles + 2);
  EXPECT_EQ(now.imported_handles, before.imported_handles + 1);
  EXPECT_EQ(now.references, before.references + 3);
  EXPECT_EQ(now.mappings, before.mappings + 1);
  EXPECT_EQ(now.reservations, before.reservations + 1);
  EXPECT_EQ(now.bytes, before.bytes + 2 * kGranule);
  EXPECT_EQ(now.streams, before.streams + 1);
  EXPECT_EQ(now.events, before.events + 1);
  EXPECT_EQ(now.contexts, before.contexts + 1);
  EXPECT_EQ(now.device_blocks, before.device_blocks + 1);
  EXPECT_EQ(now.host_blocks, before.host_blocks + 1);
  EXPECT_EQ(now.pool_blocks, before.pool_blocks + 1);
  EXPECT_EQ(now.pools, before.pools + 1);
  EXPECT_EQ(now.legacy_opens, before.legacy_opens);
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(retained), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(Ledger, RefusesSizesItDoesNotKnow) {
  VmmshareHostLedger ledger{};
  EXPECT_EQ(HostDriver().ledger(&ledger, sizeof(ledger) + 1), 1);
  EXPECT_EQ(HostDriver().ledger(nullptr, sizeof(ledger)), 1);
  EXPECT_EQ(HostDriver().ledger(&ledger, 0), 0);
}

}  // namespace
}  // namespace vmm::testing
