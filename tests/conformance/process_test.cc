// Memory between processes, and what ends a process.
#include <csignal>

#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"
#include "tests/support/mps.h"

namespace vmm::testing {
namespace {

class Processes : public Conformance {};

void* Shareable(int fd) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
}

// Imports `fd`, `size` bytes, and maps it with `flags` for device 0. Answers
// the address, or 0 when something failed.
CUdeviceptr MapImport(const platform::DriverTable& cu, Checks* checks, int fd,
                      std::size_t size, CUmemAccess_flags flags,
                      CUmemGenericAllocationHandle* handle) {
  CUdeviceptr address = 0;
  checks->Expect("import",
                 cu.cuMemImportFromShareableHandle(handle, Shareable(fd), kFd),
                 CUDA_SUCCESS);
  if (checks->failures() != 0) return 0;
  checks->Expect("reserve", cu.cuMemAddressReserve(&address, size, 0, 0, 0),
                 CUDA_SUCCESS);
  checks->Expect("map", cu.cuMemMap(address, size, 0, *handle, 0),
                 CUDA_SUCCESS);
  const CUmemAccessDesc desc = Access(flags);
  checks->Expect("set access", cu.cuMemSetAccess(address, size, &desc, 1),
                 CUDA_SUCCESS);
  return checks->failures() == 0 ? address : 0;
}

void Unmap(const platform::DriverTable& cu, Checks* checks, CUdeviceptr address,
           std::size_t size, CUmemGenericAllocationHandle handle) {
  checks->Expect("unmap", cu.cuMemUnmap(address, size), CUDA_SUCCESS);
  checks->Expect("free", cu.cuMemAddressFree(address, size), CUDA_SUCCESS);
  checks->Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
}

// args: descriptor. Expects bytes of 1 and writes 8 over them.
int Importer(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address =
      MapImport(cu, &checks, std::stoi(args[0]), kGranule, kReadWrite, &handle);
  if (address == 0) return 100;
  std::vector<std::uint8_t> bytes(kGranule);
  checks.Expect("read", cu.cuMemcpyDtoH(bytes.data(), address, kGranule),
                CUDA_SUCCESS);
  checks.ExpectTrue("all ones",
                    bytes == std::vector<std::uint8_t>(kGranule, 1));
  checks.Expect("write", FillAndWait(cu, address, 8, kGranule), CUDA_SUCCESS);
  Unmap(cu, &checks, address, kGranule, handle);
  return checks.failures();
}
const bool kImporter = RegisterChild("importer", &Importer);

// args: descriptor of memory with the RDMA flag.
int FlagReader(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemGenericAllocationHandle handle = 0;
  checks.Expect("import",
                cu.cuMemImportFromShareableHandle(
                    &handle, Shareable(std::stoi(args[0])), kFd),
                CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  CUmemAllocationProp prop{};
  checks.Expect("ask", cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle),
                CUDA_SUCCESS);
  checks.ExpectTrue("no flag", prop.allocFlags.gpuDirectRDMACapable == 0);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kFlagReader = RegisterChild("flag_reader", &FlagReader);

// Measured: as with the handle types.
TEST_F(Processes, ImportedMemoryDoesNotTellOfTheRdmaFlag) {
  CUmemAllocationProp prop = Properties();
  prop.allocFlags.gpuDirectRDMACapable = 1;
  const CUmemGenericAllocationHandle handle = CreateWith(prop);
  const int fd = Inheritable(Export(handle));
  EXPECT_EQ(Child::Start("flag_reader", {std::to_string(fd)}).Wait(), 0);
  CloseDescriptor(fd);
}

TEST_F(Processes, ShareMemoryBothWays) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr address = Reserve();
  Map(address, handle);
  SetAccess(address, kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
  const int fd = Inheritable(Export(handle));
  EXPECT_EQ(Child::Start("importer", {std::to_string(fd)}).Wait(), 0);
  CloseDescriptor(fd);
  EXPECT_EQ(Bytes(address, kGranule), std::vector<std::uint8_t>(kGranule, 8));
}

// args: descriptor. Maps read-only: reads work, writes do not, and it can give
// itself more: a guard, not a wall.
int Reader(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address =
      MapImport(cu, &checks, std::stoi(args[0]), kGranule, kRead, &handle);
  if (address == 0) return 100;
  char byte = 0;
  checks.Expect("read", cu.cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
  checks.ExpectTrue("the byte", byte == 1);
  checks.Expect("fill", cu.cuMemsetD8(address, 2, 8), CUDA_ERROR_INVALID_VALUE);
  checks.Expect("write", cu.cuMemcpyHtoD(address, &byte, 1),
                CUDA_ERROR_INVALID_VALUE);
  const CUmemAccessDesc more = Access(kReadWrite);
  checks.Expect("more access", cu.cuMemSetAccess(address, kGranule, &more, 1),
                CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, address, 2, 8), CUDA_SUCCESS);
  Unmap(cu, &checks, address, kGranule, handle);
  return checks.failures();
}
const bool kReader = RegisterChild("reader", &Reader);

TEST_F(Processes, ReadOnlyIsAGuardAndNotAWall) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr address = Reserve();
  Map(address, handle);
  SetAccess(address, kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
  const int fd = Inheritable(Export(handle));
  EXPECT_EQ(Child::Start("reader", {std::to_string(fd)}).Wait(), 0);
  CloseDescriptor(fd);
  EXPECT_EQ(Bytes(address, 1)[0], 2);
}

// args: socket. Makes memory, fills it with ones, sends it, and waits for its
// end.
int Exporter(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  Checks checks;
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  int fd = -1;
  MapNew(cu, &checks, prop, &handle, &address);
  const CUmemAccessDesc desc = Access(kReadWrite);
  checks.Expect("set access", cu.cuMemSetAccess(address, kGranule, &desc, 1),
                CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
  checks.Expect("export", ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  checks.ExpectTrue("sent", SendDescriptor(socket, fd));
  char end = 0;
  ReceiveBytes(socket, &end, 1);  // Killed meanwhile.
  return 1;
}
const bool kExporter = RegisterChild("exporter", &Exporter);

TEST_F(Processes, MemoryOutlivesItsKilledMaker) {
  const std::size_t before = FreeMemory();
  int fd = -1;
  {
    const SocketPair sockets = MakeSocketPair();
    Child maker = Child::Start("exporter", {std::to_string(sockets.childs)});
    CloseDescriptor(sockets.childs);
    ASSERT_TRUE(ReceiveDescriptor(sockets.mine, &fd));
    maker.Kill();
    EXPECT_EQ(maker.Wait(), Child::kKilled);
    CloseDescriptor(sockets.mine);
  }
  // Two importers, one after the other: only the descriptor keeps it.
  const int inherited = Inheritable(fd);
  EXPECT_EQ(Child::Start("importer", {std::to_string(inherited)}).Wait(), 0);
  CloseDescriptor(inherited);
  {
    Checks checks;
    CUmemGenericAllocationHandle handle = 0;
    const CUdeviceptr address =
        MapImport(cu, &checks, fd, kGranule, kReadWrite, &handle);
    ASSERT_NE(address, 0u);
    EXPECT_EQ(Bytes(address, kGranule), std::vector<std::uint8_t>(kGranule, 8));
    Unmap(cu, &checks, address, kGranule, handle);
    EXPECT_EQ(checks.failures(), 0);
  }
  CloseDescriptor(fd);
  EXPECT_EQ(FreeMemory(), before);
}

constexpr int kRounds = 50;

// args: descriptor. Answers each odd value of the word with the next even one,
// all of it on the device.
int Pong(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address =
      MapImport(cu, &checks, std::stoi(args[0]), kGranule, kReadWrite, &handle);
  if (address == 0) return 100;
  CUstream stream = nullptr;
  checks.Expect("stream", cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    checks.Expect("wait",
                  cu.cuStreamWaitValue64(stream, address, 2 * i + 1,
                                         CU_STREAM_WAIT_VALUE_GEQ),
                  CUDA_SUCCESS);
    checks.Expect("write",
                  cu.cuStreamWriteValue64(stream, address + 64, i + 1, 0),
                  CUDA_SUCCESS);
  }
  checks.Expect("synchronize", cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  checks.Expect("destroy", cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  Unmap(cu, &checks, address, kGranule, handle);
  return checks.failures();
}
const bool kPong = RegisterChild("pong", &Pong);

TEST_F(Processes, OrderEachOthersStreamsThroughMemory) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr address = Reserve();
  Map(address, handle);
  SetAccess(address, kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 0, kGranule), CUDA_SUCCESS);
  const int fd = Inheritable(Export(handle));
  Child child = Child::Start("pong", {std::to_string(fd)});
  CloseDescriptor(fd);
  const CUstream stream = MakeStream();
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(cu.cuStreamWriteValue64(stream, address, 2 * i + 1, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cu.cuStreamWaitValue64(stream, address + 64, i + 1,
                                     CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 2 * kRounds - 1);
  EXPECT_EQ(Word(address + 64), std::uint64_t{kRounds});
}

// args: what to do to memory that the CPU may not touch so.
int Toucher(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const bool numa = args[0] != "read device";
  const CUmemAllocationProp prop =
      numa ? Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) : Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  Checks checks;
  MapNew(cu, &checks, prop, &handle, &address);
  std::vector<CUmemAccessDesc> access = {Access(kReadWrite)};
  if (args[0] == "write read-only") {
    access.push_back(Access(kRead, 0, CU_MEM_LOCATION_TYPE_HOST_NUMA));
  }
  checks.Expect(
      "set access",
      cu.cuMemSetAccess(address, kGranule, access.data(), access.size()),
      CUDA_SUCCESS);
  if (checks.failures() != 0) return checks.failures();
  std::signal(SIGSEGV, SIG_DFL);  // A sanitizer's own handler would exit(1).
  auto* byte = reinterpret_cast<volatile char*>(address);
  if (args[0] == "write read-only") {
    if (*byte != 0) return 101;  // Reading is fine.
    *byte = 1;
  } else if (*byte == 0) {
    return 102;
  }
  return 103;
}
const bool kToucher = RegisterChild("toucher", &Toucher);

int Touch(const std::string& what) {
  return Child::Start("toucher", {what}).Wait();
}

TEST(CpuAccess, ToDeviceMemoryFaults) {
  EXPECT_EQ(Touch("read device"), 128 + SIGSEGV);
}

TEST(CpuAccess, ToNumaMemoryWithoutHostAccessFaults) {
  EXPECT_EQ(Touch("read numa"), 128 + SIGSEGV);
}

TEST(CpuAccess, WritingReadOnlyNumaMemoryFaults) {
  EXPECT_EQ(Touch("write read-only"), 128 + SIGSEGV);
}

// args: none. In a process of its own, so that the test program never forks.
int Forker(const std::vector<std::string>&) {
  static const platform::DriverTable* cu = nullptr;
  static CUmemGenericAllocationHandle handle = 0;
  cu = &DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  Checks checks;
  checks.Expect("create", cu->cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  const int forked = RunForked(+[] {
    const CUmemAllocationProp child_prop = Properties();
    constexpr CUresult kNo = CUDA_ERROR_NOT_INITIALIZED;
    Checks in_child;
    int count = 0;
    CUmemGenericAllocationHandle other = 0;
    CUdeviceptr address = 0;
    in_child.Expect("count", cu->cuDeviceGetCount(&count), kNo);
    in_child.Expect("init", cu->cuInit(0), kNo);
    in_child.Expect("create", cu->cuMemCreate(&other, kGranule, &child_prop, 0),
                    kNo);
    in_child.Expect("release", cu->cuMemRelease(handle), kNo);
    in_child.Expect("reserve",
                    cu->cuMemAddressReserve(&address, kGranule, 0, 0, 0), kNo);
    return in_child.failures();
  });
  checks.ExpectTrue("the forked child found it so", forked == 0);
  checks.Expect("release", cu->cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kForker = RegisterChild("forker", &Forker);

std::size_t FreeNow(const platform::DriverTable& cu, Checks* checks) {
  std::size_t free = 0;
  std::size_t total = 0;
  checks->Expect("free memory", cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

// args: none. Gives memory back that a child which it forked meanwhile, and which
// lives, had found in use.
int ForkerThatFrees(const std::vector<std::string>&) {
  constexpr std::size_t kSize = 64 * kMiB;
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc access = Access(kReadWrite);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUdeviceptr block = 0;
  Checks checks;
  // What the first fill and the first block take for themselves, they keep.
  checks.Expect("block", cu.cuMemAlloc(&block, kSize), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, block, 1, kSize), CUDA_SUCCESS);
  checks.Expect("free", cu.cuMemFree(block), CUDA_SUCCESS);
  const std::size_t before = FreeNow(cu, &checks);
  checks.Expect("create", cu.cuMemCreate(&handle, kSize, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("reserve", cu.cuMemAddressReserve(&address, kSize, 0, 0, 0),
                CUDA_SUCCESS);
  checks.Expect("map", cu.cuMemMap(address, kSize, 0, handle, 0), CUDA_SUCCESS);
  checks.Expect("set access", cu.cuMemSetAccess(address, kSize, &access, 1),
                CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, address, 1, kSize), CUDA_SUCCESS);
  checks.Expect("block", cu.cuMemAlloc(&block, kSize), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, block, 1, kSize), CUDA_SUCCESS);
  checks.ExpectTrue("it is in use", FreeNow(cu, &checks) + kSize < before);
  const SocketPair sockets = MakeSocketPair();
  RunApart([&] {
    CloseDescriptor(sockets.mine);
    char byte = 0;
    SendBytes(sockets.childs, &byte, 1);
    ReceiveBytes(sockets.childs, &byte, 1);  // Until the parent hangs up.
  });
  CloseDescriptor(sockets.childs);
  char byte = 0;
  checks.ExpectTrue("the child is there", ReceiveBytes(sockets.mine, &byte, 1));
  Unmap(cu, &checks, address, kSize, handle);
  checks.Expect("free", cu.cuMemFree(block), CUDA_SUCCESS);
  checks.ExpectTrue("both are back", FreeNow(cu, &checks) + kSize > before);
  CloseDescriptor(sockets.mine);
  return checks.failures();
}
const bool kForkerThatFrees =
    RegisterChild("forker-that-frees", &ForkerThatFrees);

TEST(Forking, AChildKeepsNoMemoryOfItsParents) {
  if (!CanFork()) GTEST_SKIP() << "this system has no fork";
  if (IsEmulated()) GTEST_SKIP() << kForksAllMemory;
  EXPECT_EQ(Child::Start("forker-that-frees", {}).Wait(), 0);
}

TEST(Forking, LeavesTheChildWithoutADriver) {
  if (!CanFork()) GTEST_SKIP() << "this system has no fork";
  EXPECT_EQ(Child::Start("forker", {}).Wait(), 0);
}

// The faults that only the device finds: in a process of their own, because
// the context is lost with them.
int Faulter(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc read_only = Access(kRead);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  MapNew(cu, &checks, prop, &handle, &address);
  checks.Expect("set access",
                cu.cuMemSetAccess(address, kGranule, &read_only, 1),
                CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
  checks.Expect("wait for a value",
                cu.cuStreamWaitValue64(stream, address, 0, 0), CUDA_SUCCESS);
  checks.Expect("synchronize", cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  checks.Expect("write a value", cu.cuStreamWriteValue64(stream, address, 1, 0),
                CUDA_SUCCESS);
  constexpr CUresult kFault = CUDA_ERROR_LAUNCH_FAILED;
  checks.Expect("synchronize", cu.cuStreamSynchronize(stream), kFault);
  checks.Expect("anything after", cu.cuStreamWaitValue64(stream, address, 0, 0),
                kFault);
  checks.Expect("synchronize again", cu.cuStreamSynchronize(stream), kFault);
  return checks.failures();
}
const bool kFaulter = RegisterChild("faulter", &Faulter);

TEST(Faults, OfAStreamAreStickyInItsContext) {
  // Measured on an H200: this process's own context has failed then, too.
  if (UnderMps()) {
    GTEST_SKIP() << "under MPS a fault of one client ends the contexts of all";
  }
  EXPECT_EQ(Child::Start("faulter", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
