#include "vmm/job/internal/seen_topology.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "fabric/topology.h"

namespace vmm::job {
namespace {

using fabric::FabricInfo;
using fabric::FabricState;
using fabric::Topology;

constexpr fabric::Uuid kGpu = {1};
constexpr fabric::Uuid kOther = {2};

Topology Of(absl::StatusOr<FabricInfo> fabric) {
  const absl::Status none = absl::NotFoundError("no NVML");
  return {none,
          none,
          none,
          {{kGpu, none, std::move(fabric), none}},
          {none, none, none}};
}

FabricInfo In(FabricState state) {
  FabricInfo info;
  info.state = state;
  return info;
}

class SeenTopologiesTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Topology> Get(const fabric::Uuid& uuid = kGpu) {
    return seen_.Get(uuid, [&] {
      ++reads_;
      return Of(answer_);
    });
  }

  SeenTopologies seen_;
  int reads_ = 0;
  absl::StatusOr<FabricInfo> answer_ = In(FabricState::kCompleted);
};

TEST_F(SeenTopologiesTest, AsksOnceOfAGpuThatHasJoinedItsFabric) {
  const auto first = Get();
  EXPECT_EQ(Get(), first);
  EXPECT_EQ(first->gpus.front().fabric->state, FabricState::kCompleted);
  EXPECT_EQ(reads_, 1);
}

TEST_F(SeenTopologiesTest, AsksOnceOfAGpuWithoutAFabric) {
  answer_ = In(FabricState::kNotSupported);
  Get();
  Get();
  EXPECT_EQ(reads_, 1);
}

TEST_F(SeenTopologiesTest, AsksAgainUntilAGpuHasJoined) {
  answer_ = In(FabricState::kInProgress);
  Get();
  EXPECT_EQ(Get()->gpus.front().fabric->state, FabricState::kInProgress);
  EXPECT_EQ(reads_, 2);
  answer_ = In(FabricState::kCompleted);
  EXPECT_EQ(Get()->gpus.front().fabric->state, FabricState::kCompleted);
  Get();
  EXPECT_EQ(reads_, 3);
}

TEST_F(SeenTopologiesTest, AsksAgainWhereNothingIsKnown) {
  answer_ = absl::NotFoundError("no NVML");
  Get();
  Get();
  EXPECT_EQ(reads_, 2);
}

TEST_F(SeenTopologiesTest, AsksOfEachGpu) {
  Get();
  Get(kOther);
  EXPECT_EQ(reads_, 2);
}

}  // namespace
}  // namespace vmm::job
