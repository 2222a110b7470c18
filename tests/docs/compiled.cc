// What is compiled and not run: it needs a GPU's driver, a keeper, a launcher or
// a fabric. tests/job, tests/ipc and tests/tool run programs that do the same.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "fabric/pmix.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/raw_handle.h"
#include "vmm/share/transfer.h"
#include "vmm/vmm.h"
#include "vmm/weights/manifest.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {

// They have external linkage, so that no compiler finds them unused.
void SharingAllocates();
void FabricHandshake(const Device& device, absl::Time deadline);
void FabricTicketGoesAsBytes(const platform::Driver& driver, const Device& gpu,
                             const Device& mine);
void KeeperAttaches(const platform::Driver& driver, const Device& device,
                    std::uint64_t size, absl::Time deadline);
void WeightsArePutAndAttached(const platform::Driver& driver,
                              const Device& device,
                              absl::StatusOr<KeeperClient>& keeper,
                              std::uint64_t offset, absl::Time deadline);
void HandlesOfOtherSoftware(absl::StatusOr<Device>& device,
                            absl::StatusOr<Allocation>& memory,
                            platform::OsHandle from_vulkan, std::uint64_t size);
void WindowsNamesUsers(const Device& device, std::uint64_t size);
void WindowsHasAServiceAndItsClient(const Device& device,
                                    const platform::Driver& driver,
                                    const std::string& sid_of_the_app,
                                    const std::string& text, std::uint64_t size,
                                    absl::Time deadline);

void SharingAllocates() {
#include <sharing.allocate.inc>
}

void FabricHandshake(const Device& device, absl::Time deadline) {
  const int rank = 1;
#include <fabric.handshake.inc>
#include <fabric.symmetric.inc>
  // After that.
#include <fabric.cut.inc>
}

void FabricTicketGoesAsBytes(const platform::Driver& driver, const Device& gpu,
                             const Device& mine) {
#include <fabric.ticket.inc>
}

void KeeperAttaches(const platform::Driver& driver, const Device& device,
                    std::uint64_t size, absl::Time deadline) {
  const auto Load = [](CUdeviceptr) {};
  const auto Serve = [](CUdeviceptr) {};
#include <keeper.attach.inc>
}

void WeightsArePutAndAttached(const platform::Driver& driver,
                              const Device& device,
                              absl::StatusOr<KeeperClient>& keeper,
                              std::uint64_t offset, absl::Time deadline) {
  {
#include <weights.put.inc>
  } {
#include <weights.attach.inc>
  } {
#include <weights.safetensors.inc>
  }
}

void HandlesOfOtherSoftware(absl::StatusOr<Device>& device,
                            absl::StatusOr<Allocation>& memory,
                            platform::OsHandle from_vulkan,
                            std::uint64_t size) {
#include <sharing.raw.inc>
}

void WindowsNamesUsers(const Device& device, std::uint64_t size) {
#include <windows.users.inc>
}

void WindowsHasAServiceAndItsClient(const Device& device,
                                    const platform::Driver& driver,
                                    const std::string& sid_of_the_app,
                                    const std::string& text, std::uint64_t size,
                                    absl::Time deadline) {
  {
#include <windows.service.inc>
  } {
#include <windows.client.inc>
  }
}

}  // namespace vmm::testing
