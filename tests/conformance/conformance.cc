#include "tests/conformance/conformance.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/hostdriver/host_driver.h"
#include "platform/os/library.h"
#include "platform/os/process.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/test_driver.h"

void PrintTo(CUresult result, std::ostream* out) {
  const char* name = nullptr;
  vmm::testing::TestDriver()->cuGetErrorName(result, &name);
  *out << (name != nullptr ? name : "unknown result") << " ("
       << static_cast<int>(result) << ")";
}

namespace vmm::testing {
namespace {

platform::Library OpenDriver() {
  absl::StatusOr<platform::Library> library =
      OnHostMemoryDriver()
          ? platform::Library::OpenPath(HostDriverPath())
          : platform::Library::OpenSystem(platform::SystemDriverName());
  if (!library.ok()) platform::Die(library.status().ToString());
  return *std::move(library);
}

// What the host-memory driver still holds; nothing on a real one.
std::vector<std::uint64_t> Ledger() {
  if (!OnHostMemoryDriver()) return {};
  static const auto read = reinterpret_cast<decltype(&::vmmshareHostLedger)>(
      OpenDriver().Find("vmmshareHostLedger"));
  VmmshareHostLedger now{};
  platform::Check(read != nullptr && read(&now, sizeof(now)) == 0,
                  "the host-memory driver has no ledger");
  return {now.handles,       now.imported_handles, now.references,
          now.mappings,      now.reservations,     now.bytes,
          now.streams,       now.events,           now.contexts,
          now.device_blocks, now.host_blocks,      now.legacy_opens,
          now.pools,         now.pool_blocks};
}

}  // namespace

CUmemAllocationProp Properties(int handle_types, CUmemLocationType location,
                               int id) {
  CUmemAllocationProp prop;
  std::memset(&prop, 0, sizeof(prop));
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(handle_types);
  prop.location.type = location;
  prop.location.id = id;
  if ((handle_types & kFd) != 0) prop.win32HandleMetaData = HandleAttributes();
  return prop;
}

CUmemAccessDesc Access(CUmemAccess_flags flags, int id,
                       CUmemLocationType location) {
  CUmemAccessDesc desc;
  std::memset(&desc, 0, sizeof(desc));
  desc.location.type = location;
  desc.location.id = id;
  desc.flags = flags;
  return desc;
}

platform::DriverTable UninitialisedDriver() {
  const platform::Library library = OpenDriver();
  const auto resolve = reinterpret_cast<CUresult(CUDAAPI*)(
      const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>(
      library.Find("cuGetProcAddress_v2"));
  platform::Check(resolve != nullptr, "the driver has no cuGetProcAddress_v2");
  platform::DriverTable table;
  platform::ForEachDriverEntry([&](auto entry) {
    void* address = nullptr;
    resolve(entry.name, &address, entry.version, CU_GET_PROC_ADDRESS_DEFAULT,
            nullptr);
    auto& slot = table.*(entry.kMember);
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(address);
  });
  return table;
}

const platform::DriverTable& DriverWithContext() {
  const platform::DriverTable& cu = TestDriver().table();
  // Kept to the end: making a context takes a GPU a good part of a second.
  static const CUcontext context = [&cu] {
    CUcontext made = nullptr;
    platform::Check(cu.cuDevicePrimaryCtxRetain(&made, 0) == CUDA_SUCCESS,
                    "cuDevicePrimaryCtxRetain(device 0) failed");
    return made;
  }();
  platform::Check(cu.cuCtxSetCurrent(context) == CUDA_SUCCESS,
                  "cuCtxSetCurrent failed");
  return cu;
}

CUresult FillAndWait(const platform::DriverTable& cu, CUdeviceptr address,
                     unsigned char value, std::size_t count) {
  const CUresult result = cu.cuMemsetD8(address, value, count);
  return result == CUDA_SUCCESS ? cu.cuStreamSynchronize(nullptr) : result;
}

void Checks::Expect(const char* what, CUresult got, CUresult wanted) {
  if (got == wanted) return;
  ++failures_;
  std::fprintf(stderr, "%s: expected result %d, got %d\n", what,
               static_cast<int>(wanted), static_cast<int>(got));
}

void Checks::ExpectOneOf(const char* what, CUresult got,
                         const std::vector<CUresult>& wanted) {
  if (std::find(wanted.begin(), wanted.end(), got) != wanted.end()) return;
  ++failures_;
  std::fprintf(stderr, "%s: expected one of %zu results, got %d\n", what,
               wanted.size(), static_cast<int>(got));
}

void Checks::ExpectTrue(const char* what, bool value) {
  if (value) return;
  ++failures_;
  std::fprintf(stderr, "expected: %s\n", what);
}

void MapNew(const platform::DriverTable& cu, Checks* checks,
            const CUmemAllocationProp& prop,
            CUmemGenericAllocationHandle* handle, CUdeviceptr* address) {
  checks->Expect("create", cu.cuMemCreate(handle, kGranule, &prop, 0),
                 CUDA_SUCCESS);
  checks->Expect("reserve", cu.cuMemAddressReserve(address, kGranule, 0, 0, 0),
                 CUDA_SUCCESS);
  checks->Expect("map", cu.cuMemMap(*address, kGranule, 0, *handle, 0),
                 CUDA_SUCCESS);
}

Conformance::Conformance()
    : cu(DriverWithContext()), ledger_before_(Ledger()) {}

Conformance::~Conformance() {
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  while (!undo_.empty()) {
    undo_.back()();
    undo_.pop_back();
  }
  EXPECT_EQ(Ledger(), ledger_before_) << "the test leaves something behind";
}

CUmemGenericAllocationHandle Conformance::Create(std::size_t size,
                                                 int handle_types) {
  return CreateWith(Properties(handle_types), size);
}

CUmemGenericAllocationHandle Conformance::CreateWith(
    const CUmemAllocationProp& prop, std::size_t size) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cu.cuMemCreate(&handle, size, &prop, 0);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, handle] { EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS); });
  }
  return handle;
}

CUdeviceptr Conformance::Reserve(std::size_t size) {
  CUdeviceptr address = 0;
  const CUresult result = cu.cuMemAddressReserve(&address, size, 0, 0, 0);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, address, size] {
      EXPECT_EQ(cu.cuMemAddressFree(address, size), CUDA_SUCCESS);
    });
  }
  return address;
}

void Conformance::Map(CUdeviceptr address, CUmemGenericAllocationHandle handle,
                      std::size_t size) {
  const CUresult result = cu.cuMemMap(address, size, 0, handle, 0);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, address, size] {
      EXPECT_EQ(cu.cuMemUnmap(address, size), CUDA_SUCCESS);
    });
  }
}

void Conformance::SetAccess(CUdeviceptr address, std::size_t size,
                            CUmemAccess_flags flags, int device) {
  const CUmemAccessDesc desc = Access(flags, device);
  EXPECT_EQ(cu.cuMemSetAccess(address, size, &desc, 1), CUDA_SUCCESS);
}

CUdeviceptr Conformance::Memory(std::size_t size) {
  const CUmemGenericAllocationHandle handle = Create(size);
  const CUdeviceptr address = Reserve(size);
  Map(address, handle, size);
  SetAccess(address, size);
  EXPECT_EQ(FillAndWait(cu, address, 0, size), CUDA_SUCCESS);
  return address;
}

int Conformance::Export(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  const CUresult result = ExportTo(cu, &fd, handle);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([fd] { CloseDescriptor(fd); });
  }
  return fd;
}

CUmemGenericAllocationHandle Conformance::Import(int fd) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cu.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, handle] { EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS); });
  }
  return handle;
}

CUstream Conformance::MakeStream(unsigned flags) {
  CUstream stream = nullptr;
  const CUresult result = cu.cuStreamCreate(&stream, flags);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, stream] {
      EXPECT_EQ(cu.cuStreamDestroy(stream), CUDA_SUCCESS);
    });
  }
  return stream;
}

CUevent Conformance::MakeEvent(unsigned flags) {
  CUevent event = nullptr;
  const CUresult result = cu.cuEventCreate(&event, flags);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, event] { EXPECT_EQ(cu.cuEventDestroy(event), CUDA_SUCCESS); });
  }
  return event;
}

CUresult Conformance::EndCapture(CUstream stream) {
  CUgraph graph = nullptr;
  const CUresult result = cu.cuStreamEndCapture(stream, &graph);
  EXPECT_EQ(graph != nullptr, result == CUDA_SUCCESS);
  if (graph != nullptr) {
    EXPECT_EQ(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  return result;
}

CUgraphExec Conformance::EndCaptureAsGraph(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec made = nullptr;
  EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphInstantiate(&made, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
  Later([this, made] { EXPECT_EQ(cu.cuGraphExecDestroy(made), CUDA_SUCCESS); });
  return made;
}

CUstreamCaptureStatus Conformance::StatusOf(CUstream stream) {
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  return status;
}

std::vector<std::uint8_t> Conformance::Bytes(CUdeviceptr address,
                                             std::size_t count) {
  std::vector<std::uint8_t> bytes(count, 0xee);
  EXPECT_EQ(cu.cuMemcpyDtoH(bytes.data(), address, count), CUDA_SUCCESS);
  return bytes;
}

std::uint64_t Conformance::Word(CUdeviceptr address) {
  std::uint64_t word = ~std::uint64_t{0};
  EXPECT_EQ(cu.cuMemcpyDtoH(&word, address, sizeof(word)), CUDA_SUCCESS);
  return word;
}

unsigned long long Conformance::AccessOf(CUdeviceptr address, int device) {
  unsigned long long flags = 77;
  const CUmemLocation location = Access(kNoAccess, device).location;
  EXPECT_EQ(cu.cuMemGetAccess(&flags, &location, address), CUDA_SUCCESS);
  return flags;
}

CUcontext Conformance::Current() {
  CUcontext context = nullptr;
  EXPECT_EQ(cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

int Conformance::DeviceCount() {
  int count = 0;
  EXPECT_EQ(cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  return count;
}

bool Conformance::HasFabric() {
  const CUmemAllocationProp prop = Properties(CU_MEM_HANDLE_TYPE_FABRIC);
  std::size_t size = 0;
  EXPECT_EQ(cu.cuMemGetAllocationGranularity(&size, &prop,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  if (cu.cuMemCreate(&handle, size, &prop, 0) != CUDA_SUCCESS) return false;
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  return true;
}

std::size_t Conformance::FreeMemory() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

}  // namespace vmm::testing
