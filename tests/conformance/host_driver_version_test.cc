// VMMSHARE_HOST_VERSION: what an older and a newer driver find.
#include <cuda.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"

namespace vmm::testing {
namespace {

// What cuGetProcAddress says of cuCtxCreate's newest signature, of CUDA 12.5.
int AsksForACallOf12_5(const std::vector<std::string>& args) {
  using Ask = CUresult(const char*, void**, int, cuuint64_t,
                       CUdriverProcAddressQueryResult*);
  const auto ask = FindExport<Ask>("cuGetProcAddress_v2");
  Checks checks;
  void* older = nullptr;
  void* newer = nullptr;
  CUdriverProcAddressQueryResult status{};
  checks.Expect("3.2", ask("cuCtxCreate", &older, 3020, 0, &status),
                CUDA_SUCCESS);
  checks.ExpectTrue("the older one is there", older != nullptr);
  const bool is_old = args[0] == "old";
  checks.Expect("12.5", ask("cuCtxCreate", &newer, 12050, 0, &status),
                is_old ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  checks.ExpectTrue("the newer one is where it came",
                    (newer == nullptr) == is_old && newer != older);
  const char* name = nullptr;
  const auto named =
      DriverWithContext().cuGetErrorName(static_cast<CUresult>(919), &name);
  checks.Expect("its own name", named,
                is_old ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  return checks.failures();
}
const bool kAsks = RegisterChild("asks-for-a-call", &AsksForACallOf12_5);

TEST(HostDriverVersion, HasTheCallsAndNamesOfItsTime) {
  EXPECT_EQ(Child::Start("asks-for-a-call", {"old"},
                         {{"VMMSHARE_HOST_VERSION", "12.4"}})
                .Wait(),
            0);
  EXPECT_EQ(Child::Start("asks-for-a-call", {"new"},
                         {{"VMMSHARE_HOST_VERSION", "13.5"}})
                .Wait(),
            0);
}

TEST(HostDriverVersion, ThatThereIsNotStopsTheProgram) {
  if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  for (const std::string text :
       {"11.8", "13.6", "14.0", "13", "13.x", "x.0", "12.11", "12.-1"}) {
    EXPECT_NE(Child::Start("asks-for-a-call", {"new"},
                           {{"VMMSHARE_HOST_VERSION", text}})
                  .Wait(),
              0)
        << text;
  }
}

TEST(HostDriverVersion, EntryPointsAreFoundOrItIsSaidWhyNot) {
  using Ask = CUresult(const char*, void**, int, cuuint64_t,
                       CUdriverProcAddressQueryResult*);
  Ask* const ask = FindExport<Ask>("cuGetProcAddress_v2");
  constexpr cuuint64_t kPerThread =
      CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  void* found = &found;
  ExpectAnswers({
      {"no name", ask(nullptr, &found, 12000, 0, nullptr), kInvalid},
      {"nowhere", ask("cuInit", nullptr, 12000, 0, nullptr), kInvalid},
      {"streams per thread", ask("cuInit", &found, 12000, kPerThread, nullptr),
       kInvalid},
  });
  EXPECT_EQ(found, nullptr);
  const auto status_of = [&](const char* name, int version,
                             cuuint64_t flags = 0) {
    CUdriverProcAddressQueryResult status{};
    EXPECT_EQ(ask(name, &found, version, flags, &status), CUDA_SUCCESS);
    EXPECT_EQ(found != nullptr, status == CU_GET_PROC_ADDRESS_SUCCESS);
    return status;
  };
  EXPECT_EQ(status_of("cuMemCreate", 12000), CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(status_of("cuMemCreate", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
            CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(status_of("cuMemCreate", 10010),
            CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(status_of("cuNothing", 12000),
            CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(ask("cuNothing", &found, 12000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
}

// args: what the making of memory of the host is answered, and a question after it,
// at a NUMA node and without one.
int AsksForHostMemory(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const auto wanted = [&args](std::size_t i) {
    return static_cast<CUresult>(std::stoi(args[i]));
  };
  const CUmemAllocationProp prop =
      Properties(0, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  // Of the attributes, the names are newer than some headers.
  for (const auto& [attribute, i] : {std::pair{141, 1}, std::pair{145, 2}}) {
    int value = 7;
    checks.Expect("attribute",
                  cu.cuDeviceGetAttribute(
                      &value, static_cast<CUdevice_attribute>(attribute), 0),
                  wanted(i));
    checks.ExpectTrue("its value",
                      value == (wanted(i) == CUDA_SUCCESS ? 1 : 7));
  }
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                wanted(0));
  if (handle != 0) {
    checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  }
  return checks.failures();
}
const bool kAsksForHostMemory =
    RegisterChild("asks-for-host-memory", &AsksForHostMemory);

// As cuda.h of these versions has them: of 12.2 and 12.8 it has the memory alone.
TEST(HostDriverVersion, AttributesTellOfNoMemoryThatThereIsNot) {
  struct Answers {
    const char* version;
    CUresult create;
    CUresult numa;
    CUresult host;
  };
  for (const Answers& wanted :
       {Answers{"12.1", kInvalid, kInvalid, kInvalid},
        Answers{"12.2", CUDA_SUCCESS, kInvalid, kInvalid},
        Answers{"12.8", CUDA_SUCCESS, kInvalid, kInvalid},
        Answers{"12.9", CUDA_SUCCESS, CUDA_SUCCESS, kInvalid},
        Answers{"13.0", CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS}}) {
    EXPECT_EQ(
        Child::Start("asks-for-host-memory",
                     {std::to_string(wanted.create),
                      std::to_string(wanted.numa), std::to_string(wanted.host)},
                     {{"VMMSHARE_HOST_VERSION", wanted.version}})
            .Wait(),
        0)
        << wanted.version;
  }
}

// args: the type of location that properties of device memory must tell.
int TellsLocation(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemAllocationProp told{};
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("properties",
                cu.cuMemGetAllocationPropertiesFromHandle(&told, handle),
                CUDA_SUCCESS);
  checks.ExpectTrue("the type",
                    static_cast<int>(told.location.type) == std::stoi(args[0]));
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kTellsLocation = RegisterChild("tells-location", &TellsLocation);

TEST(HostDriverVersion, ALocationYetToComeIsANumber) {
  const auto told = [](const char* type, const char* wanted) {
    return Child::Start("tells-location", {wanted},
                        {{"VMMSHARE_HOST_LOCATION", type}})
        .Wait();
  };
  constexpr int kAborted = 128 + 6;
  EXPECT_EQ(told("77", "77"), 0);
  EXPECT_EQ(told("6", "6"), 0) << "a domain of the device";
  EXPECT_EQ(told("0", "77"), kAborted);
  EXPECT_EQ(told("device", "77"), kAborted);
}

}  // namespace
}  // namespace vmm::testing
