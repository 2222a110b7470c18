// Kernels of the host-memory driver: functions of the host, in stream order.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"

namespace vmm::testing {
namespace {

constexpr char kText[] = ".version 6.4\n.target sm_60\n.address_size 64\n";
constexpr std::chrono::seconds kDeadline{30};

// The gate that kernels "wait" stand at; reset by each test.
std::promise<void> kernel_gate;
std::atomic<bool> gate_was_open = false;

void Wait(const VmmshareHostLaunch*, void* const*) {
  gate_was_open =
      kernel_gate.get_future().wait_for(kDeadline) == std::future_status::ready;
}

// words[i] = words[i] * 2 + value, for one word an `element` of the launch.
void Add(const VmmshareHostLaunch* launch, void* const* arguments) {
  auto address = *static_cast<CUdeviceptr*>(arguments[0]);
  const auto value = *static_cast<std::uint32_t*>(arguments[1]);
  std::size_t left =
      std::size_t{launch->grid[0]} * launch->block[0] * sizeof(value);
  while (left > 0) {
    std::size_t size = left;
    void* const data = launch->memory(launch, address, &size, 1);
    if (data == nullptr) return;
    auto* const words = static_cast<std::uint32_t*>(data);
    for (std::size_t i = 0; i < size / sizeof(value); ++i) {
      words[i] = words[i] * 2 + value;
    }
    address += size;
    left -= size;
  }
}

class HostKernel : public Conformance {
 protected:
  void SetUp() override {
    constexpr std::size_t kSizes[] = {sizeof(CUdeviceptr),
                                      sizeof(std::uint32_t)};
    ASSERT_EQ(HostDriver().add_kernel("add", &Add, kSizes, 2), 0);
    ASSERT_EQ(HostDriver().add_kernel("wait", &Wait, nullptr, 0), 0);
    kernel_gate = {};
    gate_was_open = false;
    ASSERT_EQ(cu.cuModuleLoadData(&module_, kText), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cu.cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuModuleUnload(module_), CUDA_SUCCESS);
  }
  CUfunction Function(const char* name) {
    CUfunction function = nullptr;
    EXPECT_EQ(cu.cuModuleGetFunction(&function, module_, name), CUDA_SUCCESS);
    return function;
  }
  CUresult Launch(CUfunction function, std::vector<void*> arguments = {},
                  unsigned int blocks = 1, unsigned int threads = 4,
                  unsigned int shared = 0) {
    return cu.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared,
                             stream_, arguments.data(), nullptr);
  }
  std::uint32_t WordAt(CUdeviceptr address) {
    std::uint32_t word = 0;
    EXPECT_EQ(cu.cuMemcpyDtoHAsync(&word, address, sizeof(word), stream_),
              CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return word;
  }

  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(HostKernel, RunsInItsStreamsTurn) {
  const CUdeviceptr address = Memory();
  const CUfunction add = Function("add");
  EXPECT_EQ(Launch(Function("wait")), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32Async(address, 5, 4, stream_), CUDA_SUCCESS);
  CUdeviceptr at = address;
  std::uint32_t value = 3;
  EXPECT_EQ(Launch(add, {&at, &value}), CUDA_SUCCESS);
  // What was given is copied: it may change at once.
  at = 0;
  value = 1000;
  std::uint32_t one = 1;
  EXPECT_EQ(Launch(add, {const_cast<CUdeviceptr*>(&address), &one}),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  kernel_gate.set_value();
  EXPECT_EQ(WordAt(address), (5u * 2 + 3) * 2 + 1);
  EXPECT_EQ(WordAt(address + 4 * sizeof(std::uint32_t)), 0u) << "beyond it";
  EXPECT_TRUE(gate_was_open);
}

TEST_F(HostKernel, ReachesOverSeveralAllocations) {
  const CUdeviceptr address = Reserve(2 * kGranule);
  Map(address, Create());
  Map(address + kGranule, Create());
  SetAccess(address, 2 * kGranule);
  CUdeviceptr at = address + kGranule - 8;
  std::uint32_t value = 7;
  EXPECT_EQ(Launch(Function("add"), {&at, &value}), CUDA_SUCCESS);
  EXPECT_EQ(WordAt(address + kGranule - 4), 7u);
  EXPECT_EQ(WordAt(address + kGranule + 4), 7u);
}

TEST_F(HostKernel, IsPartOfAGraph) {
  const CUdeviceptr address = Memory();
  ASSERT_EQ(cu.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  CUdeviceptr at = address;
  std::uint32_t value = 1;
  EXPECT_EQ(Launch(Function("add"), {&at, &value}), CUDA_SUCCESS);
  const CUgraphExec launchable = EndCaptureAsGraph(stream_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cu.cuGraphLaunch(launchable, stream_), CUDA_SUCCESS);
  }
  EXPECT_EQ(WordAt(address), 7u);
}

TEST_F(HostKernel, OfANameThatNobodyRegisteredIsNotFound) {
  // It is said once of a name, in a process that may run this again.
  static int runs = 0;
  const std::string name = "nobodys" + std::to_string(++runs);
  CUfunction function = nullptr;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(cu.cuModuleGetFunction(&function, module_, name.c_str()),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cu.cuModuleGetFunction(&function, module_, name.c_str()),
            CUDA_ERROR_NOT_FOUND);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, ::testing::HasSubstr('"' + name + '"'));
  EXPECT_THAT(told, ::testing::HasSubstr("vmmshareHostAddKernel"));
  EXPECT_THAT(told, ::testing::HasSubstr("VMMSHARE_HOST_KERNELS"));
  EXPECT_EQ(told.find(name), told.rfind(name)) << "said twice";
}

TEST_F(HostKernel, IsTheSameFunctionEachTime) {
  EXPECT_EQ(Function("add"), Function("add"));
  EXPECT_NE(Function("add"), Function("wait"));
}

TEST_F(HostKernel, RefusesLaunchesThatCannotBe) {
  const CUfunction wait = Function("wait");
  EXPECT_EQ(Launch(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Launch(wait, {}, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(wait, {}, 1, 1025), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(wait, {}, 1, 1, 1 << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuLaunchKernel(Function("add"), 1, 1, 1, 1, 1, 1, 0, stream_,
                              nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostKernel, RefusesModulesThatAreNone) {
  CUmodule module = nullptr;
  EXPECT_EQ(cu.cuModuleLoadData(&module, "hello"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cu.cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuModuleUnload(nullptr), CUDA_ERROR_INVALID_HANDLE);
  constexpr char kBinary[] =
      "\x7f"
      "ELF, a device's";
  ASSERT_EQ(cu.cuModuleLoadData(&module, kBinary), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
  const auto load = FindExport<decltype(::cuModuleLoad)>("cuModuleLoad");
  EXPECT_EQ(load(&module, "/nothing.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(HostKernel, CompilersLogsAreEmpty) {
  const auto load =
      FindExport<decltype(::cuModuleLoadDataEx)>("cuModuleLoadDataEx");
  char log[8] = "unread";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_INFO_LOG_BUFFER, CU_JIT_MAX_REGISTERS};
  void* values[] = {reinterpret_cast<void*>(sizeof(log)), log,
                    reinterpret_cast<void*>(32)};
  CUmodule module = nullptr;
  ASSERT_EQ(load(&module, kText, 3, options, values), CUDA_SUCCESS);
  EXPECT_STREQ(log, "");
  // Of no room, or in no place, nothing is written.
  char untouched[8] = "unread";
  values[0] = nullptr;
  values[1] = untouched;
  ASSERT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
  ASSERT_EQ(load(&module, kText, 2, options, values), CUDA_SUCCESS);
  EXPECT_STREQ(untouched, "unread");
  values[0] = reinterpret_cast<void*>(8);
  ASSERT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
  ASSERT_EQ(load(&module, kText, 1, options, values), CUDA_SUCCESS);
  EXPECT_EQ(values[0], nullptr);
  EXPECT_EQ(values[2], reinterpret_cast<void*>(32));
  EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(HostKernel, OccupancyIsThatOfTheModel) {
  const auto ask =
      FindExport<decltype(::cuOccupancyMaxActiveBlocksPerMultiprocessor)>(
          "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const CUfunction add = Function("add");
  int blocks = -1;
  EXPECT_EQ(ask(&blocks, add, 128, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 16);
  EXPECT_EQ(ask(&blocks, add, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 32);
  EXPECT_EQ(ask(&blocks, add, 1, 48 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 4);
  EXPECT_EQ(ask(&blocks, add, 2048, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 0);
  EXPECT_EQ(ask(&blocks, add, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostKernel, RegistrationsThatCannotBeAreRefused) {
  constexpr std::size_t kTooMuch[] = {32764, 1};
  constexpr std::size_t kNothing[] = {0};
  const auto add = HostDriver().add_kernel;
  EXPECT_EQ(add(nullptr, &Wait, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("", &Wait, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("x", nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("x", &Wait, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("x", &Wait, kTooMuch, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("x", &Wait, kNothing, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add("x", &Wait, kNothing, 1 << 20), CUDA_ERROR_INVALID_VALUE);
}

// In a process of its own: the context is lost.
int StoresWhereItMayNot(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  constexpr std::size_t kSizes[] = {sizeof(CUdeviceptr), sizeof(std::uint32_t)};
  Checks checks;
  HostDriver().add_kernel("add", &Add, kSizes, 2);
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc read_only = Access(kRead);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  MapNew(cu, &checks, prop, &handle, &address);
  checks.Expect("access", cu.cuMemSetAccess(address, kGranule, &read_only, 1),
                CUDA_SUCCESS);
  checks.Expect("load", cu.cuModuleLoadData(&module, kText), CUDA_SUCCESS);
  checks.Expect("function", cu.cuModuleGetFunction(&add, module, "add"),
                CUDA_SUCCESS);
  std::uint32_t value = 1;
  void* arguments[] = {&address, &value};
  checks.Expect(
      "launch",
      cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
      CUDA_SUCCESS);
  checks.Expect("fault", cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  checks.Expect("sticky", cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  return checks.failures();
}
const bool kStores =
    RegisterChild("stores-where-it-may-not", &StoresWhereItMayNot);

TEST_F(HostKernel, FaultsWhereTheDeviceMayNotGo) {
  EXPECT_EQ(Child::Start("stores-where-it-may-not", {}).Wait(), 0);
}

using HostKernelDeathTest = HostKernel;

TEST_F(HostKernelDeathTest, AFunctionOfAnUnloadedModuleStopsTheProgram) {
  if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  ASSERT_EQ(cu.cuModuleLoadData(&module, kText), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_DEATH(Launch(add), "cuLaunchKernel: function 0x\\w+ was already");
  EXPECT_DEATH(cu.cuModuleUnload(module), "cuModuleUnload: module");
  EXPECT_DEATH(cu.cuModuleGetFunction(&add, module, "add"),
               "cuModuleGetFunction: module 0x\\w+ was already released");
}

}  // namespace
}  // namespace vmm::testing
