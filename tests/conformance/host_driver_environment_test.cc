// What calls answer on the machines that the environment describes.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using Variables = std::map<std::string, std::string>;

int RunWith(const char* child, const Variables& variables,
            const std::vector<std::string>& args = {}) {
  return Child::Start(child, args, variables).Wait();
}

// args: what cuInit must answer.
int Initialises(const std::vector<std::string>& args) {
  Checks checks;
  checks.Expect("cuInit", UninitialisedDriver().cuInit(0),
                static_cast<CUresult>(std::stoi(args[0])));
  return checks.failures();
}
const bool kInitialises = RegisterChild("initialises", &Initialises);

TEST(Environment, VisibleDevicesEndWithTheFirstThatIsNone) {
  const auto init = [](const char* visible, CUresult result) {
    return RunWith("initialises", {{"CUDA_VISIBLE_DEVICES", visible}},
                   {std::to_string(result)});
  };
  EXPECT_EQ(init("GPU-", CUDA_ERROR_NO_DEVICE), 0) << "which of them?";
  EXPECT_EQ(init("GPU-x", CUDA_ERROR_NO_DEVICE), 0);
  EXPECT_EQ(init("-1,0", CUDA_ERROR_NO_DEVICE), 0);
  EXPECT_EQ(init("1,none", CUDA_SUCCESS), 0);
  EXPECT_EQ(init("1,1", CUDA_ERROR_INVALID_DEVICE), 0);
}

int MakesNoContext(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  CUcontext context = nullptr;
  Checks checks;
  checks.Expect("init", cu.cuInit(0), CUDA_SUCCESS);
  checks.Expect("primary", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_ERROR_DEVICE_UNAVAILABLE);
  checks.Expect("made",
                FindExport<CUresult(CUcontext*, unsigned, int)>(
                    "cuCtxCreate_v2")(&context, 0, 0),
                CUDA_ERROR_DEVICE_UNAVAILABLE);
  checks.ExpectTrue("none", context == nullptr);
  return checks.failures();
}
const bool kMakesNoContext = RegisterChild("makes-no-context", &MakesNoContext);

TEST(Environment, ProhibitedDevicesHaveNoContexts) {
  EXPECT_EQ(RunWith("makes-no-context",
                    {{"VMMSHARE_HOST_COMPUTE_MODE", "prohibited"}}),
            0);
}

int HasNoDmaBufs(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  CUdeviceptr block = 0;
  int fd = -1;
  int has = -1;
  Checks checks;
  checks.Expect("alloc", cu.cuMemAlloc(&block, kGranule), CUDA_SUCCESS);
  checks.Expect(
      "range",
      cu.cuMemGetHandleForAddressRange(&fd, block, kGranule,
                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      CUDA_ERROR_NOT_SUPPORTED);
  checks.Expect(
      "attribute",
      cu.cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
      CUDA_SUCCESS);
  checks.ExpectTrue("none", has == 0 && fd == -1);
  return checks.failures();
}
const bool kHasNoDmaBufs = RegisterChild("has-no-dma-bufs", &HasNoDmaBufs);

TEST(Environment, WithoutDmaBufsRangesHaveNoHandle) {
  EXPECT_EQ(RunWith("has-no-dma-bufs", {{"VMMSHARE_HOST_DMA_BUF", "0"}}), 0);
}

// args: what cuMemCreate of the flag must answer, and of memory of the host, and of
// that with fabric handles.
int Creates(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  CUmemAllocationProp rdma = Properties();
  rdma.allocFlags.gpuDirectRDMACapable = 1;
  const CUmemAllocationProp host =
      Properties(0, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  const CUmemAllocationProp fabric =
      Properties(CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  const std::array<const CUmemAllocationProp*, 3> all = {&rdma, &host, &fabric};
  for (std::size_t i = 0; i < all.size(); ++i) {
    checks.Expect(args[i].c_str(), cu.cuMemCreate(&handle, kGranule, all[i], 0),
                  static_cast<CUresult>(std::stoi(args[i])));
  }
  checks.Expect("import",
                cu.cuMemImportFromShareableHandle(&handle, nullptr,
                                                  CU_MEM_HANDLE_TYPE_FABRIC),
                static_cast<CUresult>(std::stoi(args[3])));
  return checks.failures();
}
const bool kCreates = RegisterChild("creates-on-machines", &Creates);

TEST(Environment, DecidesWhatMemoryThereIs) {
  const auto creates = [](const Variables& variables, CUresult rdma,
                          CUresult host, CUresult fabric, CUresult import) {
    return RunWith("creates-on-machines", variables,
                   {std::to_string(rdma), std::to_string(host),
                    std::to_string(fabric), std::to_string(import)});
  };
  constexpr CUresult kGood = CUDA_SUCCESS;
  constexpr CUresult kNoDeviceHasIt = CUDA_ERROR_INVALID_DEVICE;
  constexpr CUresult kNotPermitted = CUDA_ERROR_NOT_PERMITTED;
  constexpr CUresult kNotSupported = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_EQ(creates({{"VMMSHARE_HOST_RDMA", "works"}}, kGood, kGood,
                    kNotPermitted, kNotSupported),
            0);
  for (const char* rdma : {"none", "refused"}) {
    EXPECT_EQ(creates({{"VMMSHARE_HOST_RDMA", rdma}}, kNoDeviceHasIt, kGood,
                      kNotPermitted, kNotSupported),
              0)
        << rdma;
  }
  EXPECT_EQ(creates({{"VMMSHARE_HOST_VERSION", "12.1"}}, kGood, kInvalid,
                    kInvalid, kNotSupported),
            0);
  // With IMEX: the host has no fabric handles, and nothing is no handle.
  EXPECT_EQ(creates({{"VMMSHARE_HOST_FABRIC_ROOT", "/nothing"}}, kGood, kGood,
                    kNotSupported, kInvalid),
            0);
}

// args: what each of the three calls of CUDA 13.4 must answer.
int AsksForCliques(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const auto wanted = static_cast<CUresult>(std::stoi(args[0]));
  CUuuid cluster{};
  std::size_t count = 1;
  platform::CliqueInfo cliques[2] = {};
  Checks checks;
  checks.Expect("cluster", cu.cuDeviceGetFabricClusterUuid(&cluster, 0),
                wanted);
  checks.Expect("count", cu.cuDeviceGetCliqueCount(&count, 0), wanted);
  checks.ExpectTrue("two", count == (wanted == CUDA_SUCCESS ? 2u : 1u));
  checks.Expect("cliques", cu.cuDeviceGetCliqueInfo(cliques, &count, 0),
                wanted);
  for (const CUdevice none : {-1, kNoDevice}) {
    checks.Expect("no device", cu.cuDeviceGetCliqueCount(&count, none),
                  CUDA_ERROR_INVALID_DEVICE);
  }
  checks.Expect("nowhere", cu.cuDeviceGetFabricClusterUuid(nullptr, 0),
                kInvalid);
  checks.Expect("no cliques", cu.cuDeviceGetCliqueInfo(nullptr, &count, 0),
                kInvalid);
  if (wanted == CUDA_SUCCESS) {
    checks.Expect("no count", cu.cuDeviceGetCliqueInfo(cliques, nullptr, 0),
                  kInvalid);
  }
  return checks.failures();
}
const bool kAsksForCliques = RegisterChild("asks-for-cliques", &AsksForCliques);

TEST(Environment, DevicesThatHaveNotJoinedTellNoCliques) {
  const auto ask = [](const char* name, const char* value, CUresult wanted) {
    return RunWith("asks-for-cliques",
                   {{"VMMSHARE_HOST_VERSION", "13.4"}, {name, value}},
                   {std::to_string(wanted)});
  };
  constexpr CUresult kNot = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_EQ(ask("VMMSHARE_HOST_FABRIC_CLIQUE", "3", CUDA_SUCCESS), 0);
  EXPECT_EQ(ask("VMMSHARE_HOST_FABRIC_STATE", "in-progress", kNot), 0);
  EXPECT_EQ(ask("VMMSHARE_HOST_FABRIC_STATUS", "1", kNot), 0);
  EXPECT_EQ(ask("VMMSHARE_HOST_MIG", "1", kNot), 0);
}

// A process that was forked may fork again, and has no driver either.
int ForksTwice(const std::vector<std::string>&) {
  static const platform::DriverTable* cu = nullptr;
  cu = &DriverWithContext();
  return RunForked(+[] {
    return RunForked(+[] {
      Checks checks;
      checks.Expect("init", cu->cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
      return checks.failures();
    });
  });
}
const bool kForksTwice = RegisterChild("forks-twice", &ForksTwice);

TEST(Environment, AForkOfAForkHasNoDriver) {
  if (!CanFork()) GTEST_SKIP() << "this system has no fork";
  EXPECT_EQ(RunWith("forks-twice", {}), 0);
}

}  // namespace
}  // namespace vmm::testing
