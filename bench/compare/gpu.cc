#include "bench/compare/gpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/compare/os.h"
#include "platform/base/status_macros.h"
#include "platform/os/process.h"

namespace bench::compare {

using vmm::platform::Driver;

vmm::platform::OsHandle AdoptExported(std::intptr_t exported) {
  if (vmm::platform::kNativeHandleIsPosixFd) {
    int descriptor = -1;
    std::memcpy(&descriptor, &exported, sizeof(descriptor));
    exported = descriptor;
  }
  return vmm::platform::OsHandle::Adopt(exported);
}

absl::StatusOr<Driver> LoadDriver(const std::string& choice) {
  if (choice == "host") {
    // Rounding up to granules takes much of the budget and none of the memory.
    SetVariable("VMMSHARE_HOST_MEMORY", "64G");
    // Devices of its own: others' use would show in cuMemGetInfo.
    SetVariable("VMMSHARE_HOST_INSTANCE",
                absl::StrCat("bench-", vmm::platform::CurrentProcessId()));
  }
  return bench::LoadDriver(choice);
}

std::uint32_t FillWord(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t word = (index + 1) * 0x9e3779b97f4a7c15 + seed;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word ^= word >> 27;
  // Never 0, which fresh memory holds.
  return static_cast<std::uint32_t>(word) | 1;
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const Driver& driver, int owner,
                                               int at) {
  ASSIGN_OR_RETURN(vmm::Device owning, vmm::Device::ByOrdinal(driver, owner));
  ASSIGN_OR_RETURN(vmm::Device device, vmm::Device::ByOrdinal(driver, at));
  ASSIGN_OR_RETURN(vmm::PrimaryContext context,
                   vmm::PrimaryContext::Retain(device));
  std::unique_ptr<Gpu> gpu(new Gpu(driver, std::move(owning), std::move(device),
                                   std::move(context)));
  ASSIGN_OR_RETURN(gpu->current_, gpu->context_.MakeCurrent());
  RETURN_IF_ERROR(driver.Error(
      driver->cuStreamCreate(&gpu->stream_, CU_STREAM_NON_BLOCKING),
      "cuStreamCreate(CU_STREAM_NON_BLOCKING)"));
  return gpu;
}

Gpu::~Gpu() {
  if (stream_ != nullptr) cu().cuStreamDestroy(stream_);
}

absl::StatusOr<std::uint64_t> Gpu::FreeBytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_ERROR(Call(&Cu::cuMemGetInfo, &free, &total));
  return free;
}

CUmemAccessDesc Gpu::ReadAndWrite() const {
  CUmemAccessDesc grant{};
  grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  grant.location.id = device_.cuda_device();
  grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return grant;
}

absl::Status Gpu::Fill(const Block& block, std::uint32_t word,
                       bool corrupt) const {
  absl::Status filled =
      Call(&Cu::cuMemsetD32Async, block.address, word, block.size / 4, stream_);
  if (!filled.ok() || !corrupt) return filled;
  return Call(&Cu::cuMemsetD8Async, block.address + block.size - 1,
              static_cast<unsigned char>(~(word >> 24)), 1, stream_);
}

absl::Status Gpu::Synchronize() const {
  return Call(&Cu::cuStreamSynchronize, stream_);
}

absl::Status Gpu::Verify(const Block& block, std::uint32_t word) const {
  constexpr std::uint64_t kAll = 64 << 10;
  constexpr std::uint64_t kPart = 16 << 10;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;  // Offset, size.
  if (block.size <= kAll) {
    parts.emplace_back(0, block.size);
  } else {
    parts = {{0, kPart},
             {block.size / 2 / 4 * 4, kPart},
             {(block.size - kPart) / 4 * 4, kPart}};
  }
  std::vector<std::uint32_t> found(kAll / 4);
  for (const auto& [offset, size] : parts) {
    RETURN_IF_ERROR(Call(&Cu::cuMemcpyDtoH, found.data(),
                         block.address + offset, size / 4 * 4));
    const auto end = found.begin() + static_cast<std::ptrdiff_t>(size / 4);
    const auto wrong =
        std::find_if(found.begin(), end, [w = word](auto f) { return f != w; });
    if (wrong != end) {
      return absl::DataLossError(absl::StrCat(
          "the word at offset ", offset + 4 * (wrong - found.begin()),
          " of a block of ", block.size, " bytes is ", absl::Hex(*wrong),
          "; its owner wrote ", absl::Hex(word)));
    }
  }
  return absl::OkStatus();
}

absl::Status Gpu::Touch(const Block& block) const {
  std::uint32_t word = 0;
  return driver_.Error(cu().cuMemcpyDtoH(&word, block.address, sizeof(word)),
                       "cuMemcpyDtoH(4 bytes)");
}

}  // namespace bench::compare
