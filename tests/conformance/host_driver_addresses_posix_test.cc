// Addresses of the host-memory driver: those asked for, and more than there are.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {
namespace {

class HostAddresses : public Conformance {
 protected:
  CUdeviceptr ReserveAt(std::size_t size, std::size_t alignment,
                        CUdeviceptr hint) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAddressReserve(&address, size, alignment, hint, 0),
              CUDA_SUCCESS);
    return address;
  }
};

// More than any process has addresses for; the machine's devices have it.
constexpr std::size_t kHuge = std::size_t{1} << 47;

int HasNoAddresses(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  CUdeviceptr address = 0;
  void* data = nullptr;
  const VmmshareHostLedger before = LedgerNow();
  Checks checks;
  checks.Expect("cuMemAlloc", cu.cuMemAlloc(&address, kHuge),
                CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect("cuMemHostAlloc", cu.cuMemHostAlloc(&data, kHuge, 0),
                CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect("cuMemAllocAsync", cu.cuMemAllocAsync(&address, kHuge, nullptr),
                CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect("cuMemAddressReserve",
                cu.cuMemAddressReserve(&address, kHuge, 0, 0, 0),
                CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect(
      "aligned to more than all",
      cu.cuMemAddressReserve(&address, kHuge, std::size_t{1} << 62, 0, 0),
      CUDA_ERROR_OUT_OF_MEMORY);
  checks.Expect(
      "more than all",
      cu.cuMemAddressReserve(&address, std::size_t{0} - kGranule, 0, 0, 0),
      CUDA_ERROR_OUT_OF_MEMORY);
  const VmmshareHostLedger after = LedgerNow();
  checks.ExpectTrue("nothing is left of it",
                    std::memcmp(&before, &after, sizeof(after)) == 0 &&
                        address == 0 && data == nullptr);
  std::size_t free = 0;
  std::size_t total = 0;
  checks.Expect("cuMemGetInfo", cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  checks.ExpectTrue("all is free", free == total && total == 2 * kHuge);
  return checks.failures();
}
const bool kHasNoAddresses = RegisterChild("has-no-addresses", &HasNoAddresses);

TEST_F(HostAddresses, ThatNobodyHasAreRefusedAndLeaveNothing) {
  EXPECT_EQ(Child::Start(
                "has-no-addresses", {},
                {{"VMMSHARE_HOST_INSTANCE", HostInstanceName("no-addresses")},
                 {"VMMSHARE_HOST_MEMORY", "262144G"}})
                .Wait(),
            0);
}

TEST_F(HostAddresses, AreThoseAskedForIfTheyAreFree) {
  // Its middle: other threads are given what lies at an edge.
  constexpr std::size_t kRoom = std::size_t{1} << 32;
  const CUdeviceptr room = ReserveAt(kRoom, 0, 0);
  ASSERT_EQ(cu.cuMemAddressFree(room, kRoom), CUDA_SUCCESS);
  const CUdeviceptr hint = room + kRoom / 2;
  EXPECT_EQ(ReserveAt(kGranule, 0, hint), hint);
  const CUdeviceptr elsewhere = ReserveAt(kGranule, 0, hint);
  EXPECT_NE(elsewhere, hint) << "taken by now";
  EXPECT_EQ(cu.cuMemAddressFree(elsewhere, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(hint, kGranule), CUDA_SUCCESS);
}

TEST_F(HostAddresses, MayBeAlignedToALargePartOfThem) {
  constexpr std::size_t kAlignment = std::size_t{1} << 40;
  const CUdeviceptr address = ReserveAt(kGranule, kAlignment, 0);
  EXPECT_NE(address, 0u);
  EXPECT_EQ(address % kAlignment, 0u);
  const CUdeviceptr next = ReserveAt(kGranule, kAlignment, 0);
  EXPECT_NE(next, address);
  EXPECT_EQ(next % kAlignment, 0u);
  EXPECT_EQ(cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(next, kGranule), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
