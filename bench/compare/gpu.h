// Gpu: a device with its context, and the fills and checks of blocks.
#ifndef VMMSHARE_BENCH_COMPARE_GPU_H_
#define VMMSHARE_BENCH_COMPARE_GPU_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "bench/driver.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace bench::compare {

// The entry points of the driver.
using Cu = vmm::platform::DriverTable;

// Memory at an address. `own` is the route's.
struct Block {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;
  std::uint64_t own = 0;
};

// "host", "system" or a path. "host" gets 64 GiB of devices of its own, unless
// the environment says otherwise.
absl::StatusOr<vmm::platform::Driver> LoadDriver(const std::string& choice);

// The word that fills block `index` of a run.
std::uint32_t FillWord(std::uint64_t seed, std::uint64_t index);

class Gpu {
 public:
  // Makes the primary context of `at` current on this thread while it lives.
  // `owner` is the device whose memory is shared.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(
      const vmm::platform::Driver& driver, int owner, int at);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const vmm::platform::Driver& driver() const { return driver_; }
  const Cu& cu() const { return driver_.table(); }
  // Where this process works, and where the memory lives.
  const vmm::Device& device() const { return device_; }
  const vmm::Device& owner() const { return owner_; }
  bool is_peer() const { return !(device_ == owner_); }
  CUstream stream() const { return stream_; }

  // Makes the context current on another thread.
  absl::StatusOr<vmm::CurrentContext> MakeCurrent() const {
    return context_.MakeCurrent();
  }
  // Makes a call of the driver: Call(&Cu::cuMemFree, address). An error says
  // which one.
  template <typename... Parameters>
  absl::Status Call(CUresult (CUDAAPI* Cu::*entry)(Parameters...),
                    std::type_identity_t<Parameters>... arguments) const {
    const CUresult result = (cu().*entry)(arguments...);
    return result == CUDA_SUCCESS ? absl::OkStatus()
                                  : driver_.Error(result, CallText(entry));
  }
  // OK where the driver has all of these optional entries.
  template <auto... kEntries>
  absl::Status Need() const {
    absl::Status status;
    (status.Update(driver_.Need<kEntries>()), ...);
    return status;
  }

  absl::StatusOr<std::uint64_t> FreeBytes() const;

  // Access to memory from the device where this process works.
  CUmemAccessDesc ReadAndWrite() const;

  // Writes `word` all over `block`, or, when `corrupt`, one byte of it wrong.
  // Done when Synchronize() has returned.
  absl::Status Fill(const Block& block, std::uint32_t word,
                    bool corrupt = false) const;
  absl::Status Synchronize() const;
  // DATA_LOSS when `block` holds anything but `word`. Looks at all of a block
  // of up to 64 KiB, and at the first, middle and last 16 KiB of a larger one.
  absl::Status Verify(const Block& block, std::uint32_t word) const;
  // Reads the first word.
  absl::Status Touch(const Block& block) const;

 private:
  // "cuMemFree()".
  template <typename Entry>
  static std::string CallText(Entry entry) {
    std::string text;
    vmm::platform::ForEachDriverEntry([&]<auto kMember>(
        vmm::platform::DriverEntry<kMember> e) {
      if constexpr (std::is_same_v<decltype(kMember), Entry>) {
        if (kMember == entry) text = absl::StrCat(e.name, "()");
      }
    });
    return text;
  }

  Gpu(vmm::platform::Driver driver, vmm::Device owner, vmm::Device device,
      vmm::PrimaryContext context)
      : driver_(std::move(driver)),
        owner_(std::move(owner)),
        device_(std::move(device)),
        context_(std::move(context)) {}

  vmm::platform::Driver driver_;
  vmm::Device owner_;
  vmm::Device device_;
  vmm::PrimaryContext context_;
  vmm::CurrentContext current_;
  CUstream stream_ = nullptr;
};

// The driver's name for this system's own handle kind.
inline CUmemAllocationHandleType NativeType() {
  return static_cast<CUmemAllocationHandleType>(NativeKind());
}
// Takes over what the driver has exported as that kind into `exported`, which
// is wide enough for a descriptor and for a HANDLE.
vmm::platform::OsHandle AdoptExported(std::intptr_t exported);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_GPU_H_
