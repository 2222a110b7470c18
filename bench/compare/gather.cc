#include "bench/compare/gather.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

constexpr std::size_t kMost = 64 << 10;  // Addresses.

// out[i] = *addresses[i], compiled by the driver.
constexpr char kKernel[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry gather(.param .u64 addresses, .param .u64 out, .param .u32 count)
{
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [count];
  setp.ge.u32 %p, %r4, %r5;
  @%p ret;
  ld.param.u64 %rd1, [addresses];
  mul.wide.u32 %rd2, %r4, 8;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u64 %rd4, [%rd3];
  ld.global.u32 %r1, [%rd4];
  ld.param.u64 %rd5, [out];
  mul.wide.u32 %rd6, %r4, 4;
  add.s64 %rd7, %rd5, %rd6;
  st.global.u32 [%rd7], %r1;
  ret;
}
)";

}  // namespace

Gather::Gather(Gpu& gpu) : gpu_(gpu) {
  const Cu& cu = gpu.cu();
  if (cu.cuModuleLoadData == nullptr || cu.cuModuleGetFunction == nullptr ||
      cu.cuLaunchKernel == nullptr || gpu.driver().is_host_memory()) {
    return;
  }
  if (cu.cuModuleLoadData(&module_, kKernel) != CUDA_SUCCESS ||
      cu.cuModuleGetFunction(&kernel_, module_, "gather") != CUDA_SUCCESS ||
      cu.cuMemAlloc(&buffer_, kMost * 12) != CUDA_SUCCESS) {
    kernel_ = nullptr;
  }
}

Gather::~Gather() {
  if (buffer_ != 0) gpu_.cu().cuMemFree(buffer_);
  if (module_ != nullptr) gpu_.cu().cuModuleUnload(module_);
}

absl::Status Gather::ReadOneWordOfEach(
    const std::vector<CUdeviceptr>& addresses) {
  if (addresses.size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat(addresses.size(), " blocks; at most ", kMost));
  }
  if (!gpu_.driver().is_host_memory() && kernel_ == nullptr) {
    return absl::FailedPreconditionError(
        "the driver does not load the kernel that reads a word of each block");
  }
  if (kernel_ == nullptr) {
    std::vector<std::uint32_t> words(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemcpyDtoHAsync, &words[i], addresses[i],
                                4, gpu_.stream()));
    }
    return gpu_.Synchronize();
  }
  auto count = static_cast<unsigned>(addresses.size());
  RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemcpyHtoDAsync, buffer_, addresses.data(),
                            addresses.size() * 8, gpu_.stream()));
  CUdeviceptr out = buffer_ + kMost * 8;
  void* arguments[] = {&buffer_, &out, &count};
  constexpr unsigned kThreads = 256;
  RETURN_IF_ERROR(gpu_.driver().Error(
      gpu_.cu().cuLaunchKernel(kernel_, (count + kThreads - 1) / kThreads, 1, 1,
                               kThreads, 1, 1, 0, gpu_.stream(), arguments,
                               nullptr),
      "cuLaunchKernel(gather)"));
  return gpu_.Synchronize();
}

}  // namespace bench::compare
