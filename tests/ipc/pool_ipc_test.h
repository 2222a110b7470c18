// What the tests of pools between processes share.
#ifndef VMMSHARE_TESTS_IPC_POOL_IPC_TEST_H_
#define VMMSHARE_TESTS_IPC_POOL_IPC_TEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/ipc/pool_peer.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {

// A pool of segments of 4 MiB, and an endpoint.
class PoolIpcTest : public IpcTest {
 protected:
  static PoolOptions SmallSegments(std::uint64_t cap = 0) {
    return {.sharing = TestSharing(),
            .first_segment_size = 4 * kMiB,
            .max_segment_size = 4 * kMiB,
            .cap = cap};
  }
  // Replaces the pool, which no publication may be of.
  void UsePool(const PoolOptions& options) {
    pool_ = Must(Pool::Create(device, options));
  }
  void SetUp() override {
    UsePool(SmallSegments());
    endpoint_ = StartEndpoint();
  }
  void TearDown() override {
    if (pool_ != nullptr) ExpectWhole();
  }

  std::unique_ptr<Endpoint> StartEndpoint(EndpointOptions options = {}) {
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  Share Serve(SharingDomain domain = SharingDomain::kFirst,
              const ShareOptions& options = {}) {
    ServableDomain served = pool_->InDomain(domain);
    return Must(endpoint_->Serve(served, options));
  }
  PoolPeer StartPeer(const std::map<std::string, std::string>& env = {}) {
    return PoolPeer::Start(listener(), env);
  }
  // A subscription of this very process.
  std::unique_ptr<ImportedPool> Subscribe(const Share& publication,
                                          ImportOptions options = {}) {
    if (IsTestOfLegacyIpc()) options.access = Access::kReadWrite;
    return Must(ImportedPool::Subscribe(driver(), publication.ticket(), options,
                                        Late()));
  }

  CUdeviceptr Take(std::uint64_t size,
                   SharingDomain domain = SharingDomain::kFirst) {
    return Must(pool_->Allocate(size, nullptr, {.domain = domain}));
  }
  // `count` blocks of `size`, the i-th with pattern `seed` + i.
  std::vector<CUdeviceptr> TakePatterns(std::size_t count, std::uint64_t size,
                                        std::uint64_t seed) {
    std::vector<CUdeviceptr> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(Take(size));
      WritePattern(blocks.back(), size, seed + i);
    }
    return blocks;
  }
  PoolTicket Export(CUdeviceptr block) { return Must(pool_->Export(block)); }
  void Free(CUdeviceptr block) {
    const absl::Status freed = pool_->Free(block, nullptr);
    EXPECT_TRUE(freed.ok()) << freed;
  }
  void FreeAll(const std::vector<CUdeviceptr>& blocks) {
    for (CUdeviceptr block : blocks) Free(block);
  }
  void ExpectWhole() {
    const absl::Status whole = pool_->CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
  }
  // Soon, for the end of a peer is told by its connection.
  void ExpectNothingHeld() {
    ExpectSoon([this] {
      return pool_->statistics().held == 0 && pool_->statistics().peers == 0;
    });
    ExpectWhole();
  }
  void ExpectAllIsFree() {
    ExpectNothingHeld();
    EXPECT_EQ(pool_->statistics().live, 0u);
    Must(pool_->Trim());
    if (IsTestOfLegacyIpc()) {
      // Segments stay until each peer's leaving is worked off.
      ExpectSoon([this] {
        Must(pool_->Trim());
        return pool_->statistics().reserved == 0;
      });
    }
    EXPECT_EQ(pool_->statistics().reserved, 0u)
        << pool_->statistics().last_error;
  }

  // The endpoint ends first: its sessions use the pool.
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_POOL_IPC_TEST_H_
