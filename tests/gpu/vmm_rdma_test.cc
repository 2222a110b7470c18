// Memory that network cards may use: CUDA's gpuDirectRDMACapable.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/pool/pool.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RdmaTest : public DriverTest {};

TEST_F(RdmaTest, IsOffUnlessItIsAskedFor) {
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  EXPECT_FALSE(Must(memory.IsRdmaCapable()));
  EXPECT_TRUE(memory.rdma_refusal().ok());
}

TEST_F(RdmaTest, APoolSaysWhetherItsMemoryHasIt) {
  const auto off = Must(Pool::Create(device, {}));
  EXPECT_THAT(std::string(off->rdma_refusal().message()),
              HasSubstr("PoolOptions::rdma"));
  const auto pool = Must(Pool::Create(device, {.rdma = Rdma::kTry}));
  EXPECT_TRUE(absl::IsFailedPrecondition(pool->rdma_refusal()));
  EXPECT_THAT(std::string(pool->rdma_refusal().message()),
              HasSubstr("no memory yet"));
  const CUdeviceptr block = Must(pool->Allocate(1, nullptr));
  const Allocation alone =
      Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}));
  EXPECT_EQ(pool->rdma_refusal().code(), alone.rdma_refusal().code());
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
}

// Whether or not it has the flag.
void ExpectIsSharedAsWithout(const Device& device, const Allocation& tried) {
  const Allocation without = Must(Allocation::Create(device, {.size = 1}));
  EXPECT_FALSE(tried.kinds().empty());
  EXPECT_EQ(tried.kinds(), without.kinds());
  EXPECT_EQ(tried.passed_over().size(), without.passed_over().size());
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(tried.shareable()));
  const absl::Status exported = out.handle(0).status();
  EXPECT_TRUE(exported.ok()) << exported;
}

TEST_F(RdmaTest, TryingKeepsTheKindsOfHandles) {
  const Allocation tried =
      Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}));
  ExpectIsSharedAsWithout(device, tried);
}

// On GPUs that refuse the flag: as the refusal says.
TEST_F(RdmaTest, TryAndRequireAgreeOnEveryChunk) {
  const AllocationOptions options = {.size = 3 * kGranule,
                                     .max_chunk_size = kGranule};
  AllocationOptions trying = options;
  trying.rdma = Rdma::kTry;
  AllocationOptions requiring = options;
  requiring.rdma = Rdma::kRequire;
  const Allocation tried = Must(Allocation::Create(device, trying));
  const absl::StatusOr<Allocation> required =
      Allocation::Create(device, requiring);
  EXPECT_EQ(Must(tried.IsRdmaCapable()), tried.rdma_refusal().ok())
      << tried.rdma_refusal();
  EXPECT_EQ(required.ok(), tried.rdma_refusal().ok()) << required.status();
  if (required.ok()) {
    EXPECT_TRUE(Must(required->IsRdmaCapable()));
  }
  Fill(tried.address(), 0x5a, tried.size());
  EXPECT_TRUE(Holds(tried.address(), 0x5a, tried.size()));
  std::printf("this device's RDMA flag: %s\n",
              tried.rdma_refusal().ok()
                  ? "had"
                  : std::string(tried.rdma_refusal().message()).c_str());
}

TEST_F(RdmaTest, WhatNoMemoryCanBeIsNotForWantOfTheFlag) {
  if (!Allocation::Create(device, {.size = 1, .rdma = Rdma::kRequire}).ok()) {
    GTEST_SKIP() << "the device has no memory with the flag";
  }
  const auto fails = [&](const AllocationOptions& options) {
    const absl::Status status = Allocation::Create(device, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("kTry")));
    return std::string(status.message());
  };
  for (const Rdma rdma : {Rdma::kOff, Rdma::kTry, Rdma::kRequire}) {
    EXPECT_THAT(fails({.size = 1, .max_chunk_size = 4096, .rdma = rdma}),
                HasSubstr("max_chunk_size is 4096"));
    EXPECT_THAT(fails({.size = 1, .alignment = 3, .rdma = rdma}),
                HasSubstr("alignment=3; expected 0 or a power of two"));
    // This one the driver refuses.
    EXPECT_THAT(fails({.size = 1, .host_numa_node = 9999, .rdma = rdma}),
                HasSubstr("host NUMA node 9999"));
  }
}

TEST_F(RdmaTest, IsKeptWhenDiscardedMemoryIsMadeAgain) {
  Allocation memory =
      Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}));
  const bool had = Must(memory.IsRdmaCapable());
  EXPECT_TRUE(memory.Discard().ok());
  EXPECT_EQ(memory.IsRdmaCapable().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(memory.Remap().ok());
  EXPECT_EQ(Must(memory.IsRdmaCapable()), had);
}

TEST_F(RdmaTest, APoolsSegmentsHaveIt) {
  const bool had =
      Must(Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}))
               .IsRdmaCapable());
  for (const Rdma rdma : {Rdma::kOff, Rdma::kTry}) {
    PoolOptions options;
    options.rdma = rdma;
    const std::unique_ptr<Pool> pool = Must(Pool::Create(device, options));
    const CUdeviceptr block = Must(pool->Allocate(1000, nullptr));
    const OwnedMemoryHandle chunk = Must(RetainMemoryAt(driver(), block));
    CUmemAllocationProp properties{};
    EXPECT_EQ(driver()->cuMemGetAllocationPropertiesFromHandle(
                  &properties, chunk.get().handle),
              CUDA_SUCCESS);
    EXPECT_EQ(properties.allocFlags.gpuDirectRDMACapable != 0,
              had && rdma == Rdma::kTry);
    EXPECT_TRUE(pool->Free(block, nullptr).ok());
  }
}

// What each model of the host-memory driver (host_driver.h) comes to.
// args: works or refused, a part of the reason.
int Model(const std::vector<std::string>& args) {
  const Device device = FirstDevice();
  const bool works = args[0] == "works";
  const Allocation tried =
      Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}));
  EXPECT_EQ(Must(tried.IsRdmaCapable()), works);
  EXPECT_EQ(tried.rdma_refusal().ok(), works);
  ExpectIsSharedAsWithout(device, tried);
  const absl::StatusOr<Allocation> required =
      Allocation::Create(device, {.size = 1, .rdma = Rdma::kRequire});
  EXPECT_EQ(required.ok(), works) << required.status();
  if (!works) {
    const std::string message(required.status().message());
    EXPECT_TRUE(absl::IsFailedPrecondition(required.status()))
        << required.status();
    EXPECT_THAT(message, HasSubstr(device.Describe()));
    EXPECT_THAT(message, HasSubstr(args[1]));
    EXPECT_THAT(message, HasSubstr("Ask for Rdma::kTry"));
    EXPECT_EQ(required.status().code(), tried.rdma_refusal().code());
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kModel = RegisterChild("rdma-model", &Model);

int RunModel(const std::string& model, bool works, const std::string& reason) {
  return Child::Start("rdma-model", {works ? "works" : "refused", reason},
                      {{"VMMSHARE_HOST_RDMA", model}})
      .Wait();
}

TEST(RdmaModelTest, EveryRefusalIsToldAndTryGoesOnWithout) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "models are the host driver's";
  EXPECT_EQ(RunModel("works", true, ""), 0);
  EXPECT_EQ(
      RunModel("none", false,
               "cuDeviceGetAttribute(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) "
               "says 0"),
      0);
  EXPECT_EQ(RunModel("refused", false, "CUDA_ERROR_INVALID_DEVICE"), 0);
  EXPECT_EQ(RunModel("no-access", false, "cuMemSetAccess("), 0);
  EXPECT_EQ(RunModel("forgotten", false, "gpuDirectRDMACapable=0"), 0);
}

TEST_F(RdmaTest, DoesNotFallBackWhereTheMemoryDoesNotFit) {
  std::size_t total = 0;
  ASSERT_EQ(driver()->cuDeviceTotalMem(&total, device.cuda_device()),
            CUDA_SUCCESS);
  EXPECT_EQ(
      Allocation::Create(device, {.size = total + kGranule, .rdma = Rdma::kTry})
          .status()
          .code(),
      absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace vmm::testing
