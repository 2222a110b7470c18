// What the host-memory driver says of streams, graphs and kernels that cannot be:
// where the model has its own rules, or no measurement says what a real driver does.
#include <array>
#include <string>

#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

void DoNothing(const VmmshareHostLaunch*, void* const*) {}

class HostRefusals : public Conformance {
 protected:
  void SetUp() override {
    ASSERT_EQ(HostDriver().add_kernel("nothing", &DoNothing, nullptr, 0), 0);
    ASSERT_EQ(cu.cuModuleLoadData(&module_, kModuleText), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuModuleGetFunction(&nothing_, module_, "nothing"),
              CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cu.cuModuleUnload(module_), CUDA_SUCCESS);
  }
  // A graph that does nothing, to launch.
  CUgraphExec EmptyGraph() {
    const CUstream stream = MakeStream();
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
    return EndCaptureAsGraph(stream);
  }
  CUresult Launch(std::array<unsigned, 3> grid, std::array<unsigned, 3> block,
                  CUstream stream = nullptr, void** arguments = nullptr,
                  void** extra = nullptr) {
    return cu.cuLaunchKernel(nothing_, grid[0], grid[1], grid[2], block[0],
                             block[1], block[2], 0, stream, arguments, extra);
  }

  CUmodule module_ = nullptr;
  CUfunction nothing_ = nullptr;
};

TEST_F(HostRefusals, EveryCallSaysThatThereIsNoStreamPerThread) {
  constexpr CUresult kNot = CUDA_ERROR_NOT_SUPPORTED;
  const CUstream each = CU_STREAM_PER_THREAD;
  const CUdeviceptr at = Memory();
  const CUevent event = MakeEvent();
  std::uint64_t word = 7;
  int priority = 7;
  unsigned int flags = 7;
  CUcontext context = nullptr;
  CUdeviceptr made = 0;
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  const auto to_do = +[](void*) {};
  ExpectAnswers({
      {"query", cu.cuStreamQuery(each), kNot},
      {"synchronize", cu.cuStreamSynchronize(each), kNot},
      {"wait", cu.cuStreamWaitEvent(each, event, 0), kNot},
      {"context", cu.cuStreamGetCtx(each, &context), kNot},
      {"write", cu.cuStreamWriteValue64(each, at, 1, 0), kNot},
      {"wait for", cu.cuStreamWaitValue64(each, at, 0, 0), kNot},
      {"function", cu.cuLaunchHostFunc(each, to_do, nullptr), kNot},
      {"record", cu.cuEventRecord(event, each), kNot},
      {"to the device", cu.cuMemcpyHtoDAsync(at, &word, 8, each), kNot},
      {"from it", cu.cuMemcpyDtoHAsync(&word, at, 8, each), kNot},
      {"on it", cu.cuMemcpyDtoDAsync(at + 8, at, 8, each), kNot},
      {"fill", cu.cuMemsetD8Async(at, 1, 8, each), kNot},
      {"allocate", cu.cuMemAllocAsync(&made, 8, each), kNot},
      {"free", cu.cuMemFreeAsync(0, each), kNot},
      {"begin", cu.cuStreamBeginCapture(each, CU_STREAM_CAPTURE_MODE_RELAXED),
       kNot},
      {"end", cu.cuStreamEndCapture(each, &graph), kNot},
      {"capturing", cu.cuStreamIsCapturing(each, &status), kNot},
      {"graph", cu.cuGraphLaunch(EmptyGraph(), each), kNot},
      {"kernel", Launch({1, 1, 1}, {1, 1, 1}, each), kNot},
      {"priority",
       FindExport<decltype(::cuStreamGetPriority)>("cuStreamGetPriority")(
           each, &priority),
       kNot},
      {"flags",
       FindExport<decltype(::cuStreamGetFlags)>("cuStreamGetFlags")(each,
                                                                    &flags),
       kNot},
      {"destroy", cu.cuStreamDestroy(each), CUDA_ERROR_INVALID_HANDLE},
      {"destroy the context's", cu.cuStreamDestroy(CU_STREAM_LEGACY),
       CUDA_ERROR_INVALID_HANDLE},
  });
  EXPECT_EQ(Word(at), 0u) << "nothing of it was done";
  EXPECT_EQ(word, 7u);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS) << "nothing is recorded";
  EXPECT_EQ(priority, 7);
  EXPECT_EQ(flags, 7u);
}

TEST_F(HostRefusals, StreamsTellWhatTheyAre) {
  const auto priority_of =
      FindExport<decltype(::cuStreamGetPriority)>("cuStreamGetPriority");
  const auto flags_of =
      FindExport<decltype(::cuStreamGetFlags)>("cuStreamGetFlags");
  const auto range = FindExport<decltype(::cuCtxGetStreamPriorityRange)>(
      "cuCtxGetStreamPriorityRange");
  unsigned int flags = 7;
  int priority = 7;
  ExpectAnswers({
      {"half of the range", range(nullptr, &priority), CUDA_SUCCESS},
      {"the other half", range(&priority, nullptr), CUDA_SUCCESS},
      {"no priority", priority_of(nullptr, nullptr), kInvalid},
      {"no flags", flags_of(nullptr, nullptr), kInvalid},
      {"the context's", flags_of(nullptr, &flags), CUDA_SUCCESS},
  });
  EXPECT_EQ(priority, 0);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_DEFAULT));
}

TEST_F(HostRefusals, KernelsOfSizesThatCannotBe) {
  const std::array<std::array<unsigned, 6>, 14> sizes = {{
      {0, 1, 1, 1, 1, 1},
      {1, 0, 1, 1, 1, 1},
      {1, 1, 0, 1, 1, 1},
      {1, 1, 1, 0, 1, 1},
      {1, 1, 1, 1, 0, 1},
      {1, 1, 1, 1, 1, 0},
      {1u << 31, 1, 1, 1, 1, 1},
      {1, 1u << 16, 1, 1, 1, 1},
      {1, 1, 1u << 16, 1, 1, 1},
      {1, 1, 1, 1025, 1, 1},
      {1, 1, 1, 1, 1025, 1},
      {1, 1, 1, 1, 1, 65},
      {1, 1, 1, 33, 32, 1},
      {1, 1, 1, 32, 32, 2},
  }};
  for (const auto& [x, y, z, of_x, of_y, of_z] : sizes) {
    EXPECT_EQ(Launch({x, y, z}, {of_x, of_y, of_z}), kInvalid)
        << x << " " << y << " " << z << " of " << of_x << " " << of_y << " "
        << of_z;
  }
  EXPECT_EQ(Launch({1u << 30, 65535, 65535}, {16, 1, 64}), CUDA_SUCCESS);
  void* arguments[] = {nullptr};
  ExpectAnswers({
      {"packed", Launch({1, 1, 1}, {1, 1, 1}, nullptr, nullptr, arguments),
       CUDA_ERROR_NOT_SUPPORTED},
      {"both ways", Launch({1, 1, 1}, {1, 1, 1}, nullptr, arguments, arguments),
       kInvalid},
  });
  const auto ask =
      FindExport<decltype(::cuOccupancyMaxActiveBlocksPerMultiprocessor)>(
          "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  int blocks = -1;
  ExpectAnswers({
      {"nowhere", ask(nullptr, nothing_, 1, 0), kInvalid},
      {"no function", ask(&blocks, nullptr, 1, 0), CUDA_ERROR_INVALID_HANDLE},
      {"much memory", ask(&blocks, nothing_, 1, 1 << 20), CUDA_SUCCESS},
  });
  EXPECT_EQ(blocks, 0);
}

TEST_F(HostRefusals, KernelsAndEventsOfAnotherContext) {
  const CUevent event = MakeEvent();
  CUcontext made = nullptr;
  ASSERT_EQ((FindExport<CUresult(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(
                &made, 0, 0)),
            CUDA_SUCCESS);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuEventRecord(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  CUmodule module = nullptr;
  EXPECT_EQ(cu.cuModuleLoadData(&module, kModuleText), CUDA_SUCCESS);
  EXPECT_EQ(FindExport<CUresult(CUcontext)>("cuCtxDestroy_v2")(made),
            CUDA_SUCCESS);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}), CUDA_SUCCESS)
      << "its own module stays";
}

TEST_F(HostRefusals, ModulesAndLibraries) {
  const auto load = FindExport<decltype(::cuModuleLoad)>("cuModuleLoad");
  const auto load_data =
      FindExport<decltype(::cuModuleLoadDataEx)>("cuModuleLoadDataEx");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUjit_option option = CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES;
  CUlibraryOption library_option{};
  void* value = nullptr;
  const auto load_library = cu.cuLibraryLoadData;
  const auto unload =
      FindExport<decltype(::cuLibraryUnload)>("cuLibraryUnload");
  ExpectAnswers({
      {"no module", load(nullptr, "/nothing"), kInvalid},
      {"no path", load(&module, nullptr), kInvalid},
      {"no options", load_data(&module, kModuleText, 1, nullptr, &value),
       kInvalid},
      {"no values", load_data(&module, kModuleText, 1, &option, nullptr),
       kInvalid},
      {"no function", cu.cuModuleGetFunction(nullptr, module_, "nothing"),
       kInvalid},
      {"no name", cu.cuModuleGetFunction(&function, module_, nullptr),
       kInvalid},
      {"of no module", cu.cuModuleGetFunction(&function, nullptr, "nothing"),
       CUDA_ERROR_INVALID_HANDLE},
      {"no jit options",
       load_library(&library, kModuleText, nullptr, &value, 1, nullptr, nullptr,
                    0),
       kInvalid},
      {"no jit values",
       load_library(&library, kModuleText, &option, nullptr, 1, nullptr,
                    nullptr, 0),
       kInvalid},
      {"no options of it",
       load_library(&library, kModuleText, nullptr, nullptr, 0, nullptr, &value,
                    1),
       kInvalid},
      {"no values of it",
       load_library(&library, kModuleText, nullptr, nullptr, 0, &library_option,
                    nullptr, 1),
       kInvalid},
      {"unload nothing", unload(nullptr), CUDA_ERROR_INVALID_HANDLE},
      {"load",
       load_library(&library, kModuleText, &option, &value, 1, &library_option,
                    &value, 1),
       CUDA_SUCCESS},
      {"kernel", cu.cuLibraryGetKernel(&kernel, library, "nothing"),
       CUDA_SUCCESS},
      {"unload", unload(library), CUDA_SUCCESS},
      {"unload again", unload(library), CUDA_ERROR_INVALID_HANDLE},
      {"kernel of it", cu.cuLibraryGetKernel(&kernel, library, "nothing"),
       CUDA_ERROR_INVALID_HANDLE},
  });
  EXPECT_EQ(module, nullptr);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}), CUDA_SUCCESS) << "the module's";
}

}  // namespace
}  // namespace vmm::testing
