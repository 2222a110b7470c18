// Descriptors that a driver exports, of one that gives what a test tells it to.
#include <cuda.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "platform/base/check.h"
#include "platform/cuda/dma_buf.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/memory_handle.h"
#include "tests/support/must.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

struct Model {
  bool has_entry = true;
  CUresult result = CUDA_SUCCESS;
  int descriptor = -1;
};
Model& Now() {
  static Model model;
  return model;
}

CUresult CUDAAPI Version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Text(CUresult, const char** text) {
  *text = "TEXT";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Succeed() { return CUDA_SUCCESS; }
CUresult Give(void* handle) {
  *static_cast<int*>(handle) = Now().descriptor;
  errno = EMFILE;
  return Now().result;
}
CUresult CUDAAPI GiveRange(void* handle, CUdeviceptr, std::size_t,
                           CUmemRangeHandleType, unsigned long long) {
  return Give(handle);
}
CUresult CUDAAPI GiveMemory(void* handle, CUmemGenericAllocationHandle,
                            CUmemAllocationHandleType, unsigned long long) {
  return Give(handle);
}
CUresult CUDAAPI GivePool(void* handle, CUmemoryPool, CUmemAllocationHandleType,
                          unsigned long long) {
  return Give(handle);
}

CUresult CUDAAPI GetProcAddress(const char* name, void** address, int,
                                cuuint64_t, CUdriverProcAddressQueryResult*) {
  const auto is = [name](const char* other) {
    return std::strcmp(name, other) == 0;
  };
  if (is("cuMemGetHandleForAddressRange")) {
    *address = Now().has_entry ? reinterpret_cast<void*>(&GiveRange) : nullptr;
  } else if (is("cuMemExportToShareableHandle")) {
    *address = reinterpret_cast<void*>(&GiveMemory);
  } else if (is("cuMemPoolExportToShareableHandle")) {
    *address = reinterpret_cast<void*>(&GivePool);
  } else if (is("cuDriverGetVersion")) {
    *address = reinterpret_cast<void*>(&Version);
  } else if (is("cuGetErrorName") || is("cuGetErrorString")) {
    *address = reinterpret_cast<void*>(&Text);
  } else {
    *address = reinterpret_cast<void*>(&Succeed);
  }
  return CUDA_SUCCESS;
}

Driver Load(const Model& model) {
  Now() = model;
  return testing::Must(Driver::LoadFromLookup("model", [](const char* symbol) {
    return std::strcmp(symbol, "cuGetProcAddress_v2") == 0
               ? reinterpret_cast<void*>(&GetProcAddress)
               : nullptr;
  }));
}

absl::StatusOr<OsHandle> Export(const Model& model) {
  return ExportDmaBuf(Load(model), 0x1000, 4096, 0);
}

// A descriptor that a program started from here would inherit.
int Inheritable() {
  const int descriptor = ::fcntl(STDERR_FILENO, F_DUPFD, 100);
  Check(descriptor >= 0, "fcntl() failed");
  return descriptor;
}

TEST(DmaBuf, IsOwnedAndNoProgramInheritsIt) {
  const int inheritable = Inheritable();
  const absl::StatusOr<OsHandle> handle = Export({.descriptor = inheritable});
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->get(), inheritable);
  EXPECT_EQ(::fcntl(inheritable, F_GETFD), FD_CLOEXEC);
}

TEST(DmaBuf, OfAnOlderDriverNamesTheEntryPoint) {
  const absl::Status status = Export({.has_entry = false}).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no entry point cuMemGetHandleForAddressRange"));
}

TEST(DmaBuf, ThatTheDriverRefusesNamesTheRange) {
  const absl::Status status =
      Export({.result = CUDA_ERROR_NOT_SUPPORTED}).status();
  EXPECT_EQ(ResultOf(status), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuMemGetHandleForAddressRange(0x1000, size=4096, "
                        "dma-buf, flags=0)"));
}

TEST(DmaBuf, ThatIsNoDescriptorIsAnError) {
  const absl::Status none = Export({.descriptor = -1}).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("gave no descriptor"));
}

TEST(MemoryHandle, IsWhatTheDriverGave) {
  const Driver driver = Load({.descriptor = Inheritable()});
  OsHandle handle;
  EXPECT_EQ(kMemoryHandleKind.make(driver, 1, &handle), CUDA_SUCCESS);
  EXPECT_EQ(handle.get(), Now().descriptor);
}

TEST(MemoryHandle, OfAPoolIsADuplicateThatNoProgramInherits) {
  const Driver driver = Load({.descriptor = Inheritable()});
  OsHandle handle;
  EXPECT_EQ(kMemoryHandleKind.make_pool(driver, nullptr, &handle),
            CUDA_SUCCESS);
  ASSERT_TRUE(handle.has_value());
  EXPECT_EQ(::fcntl(static_cast<int>(handle.get()), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(Now().descriptor, F_GETFD), -1) << "it is closed";
}

TEST(MemoryHandle, IsNotSetWhereTheDriverGivesNone) {
  for (const auto& [model, expected] :
       {std::pair{Model{.result = CUDA_ERROR_NOT_PERMITTED},
                  CUDA_ERROR_NOT_PERMITTED},
        {Model{.descriptor = -1}, CUDA_ERROR_OPERATING_SYSTEM}}) {
    const Driver driver = Load(model);
    OsHandle handle;
    EXPECT_EQ(kMemoryHandleKind.make(driver, 1, &handle), expected);
    EXPECT_EQ(kMemoryHandleKind.make_pool(driver, nullptr, &handle), expected);
    EXPECT_FALSE(handle.has_value());
  }
}

}  // namespace
}  // namespace vmm::platform
