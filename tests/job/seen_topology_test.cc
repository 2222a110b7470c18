#include "vmm/job/internal/seen_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fabric/diagnosis.h"
#include "fabric/topology.h"

namespace vmm::job {
namespace {

using fabric::FabricInfo;
using fabric::FabricState;
using fabric::Topology;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

// A GPU that is in a domain, by a process that was there before its channel was.
class WhyNoFabricTest : public ::testing::Test {
 protected:
  WhyNoFabricTest() : seen_(Of(In(FabricState::kCompleted))) {
    seen_.gpus.front().fabric->cluster.fill(1);
    seen_.imex = {std::vector<platform::ImexChannel>(),
                  std::optional<unsigned>(242), true};
    platform::ImexChannel channel;
    channel.path = "/dev/nvidia-caps-imex-channels/channel0";
    channel.usable = channel.is_device = true;
    channel.major = 242;
    now_ = seen_.imex;
    now_.channels->push_back(channel);
  }
  fabric::Finding Why() const {
    return WhyNoFabric(seen_, now_,
                       {true, absl::PermissionDeniedError("refused")})
        .value_or(fabric::Finding());
  }

  Topology seen_;
  fabric::ImexTopology now_{absl::UnknownError(""), absl::UnknownError(""),
                            absl::UnknownError("")};
};

TEST_F(WhyNoFabricTest, SaysWhatIsMendedByNow) {
  const fabric::Finding why = Why();
  EXPECT_EQ(why.id, "no-channel");
  EXPECT_THAT(why.text, StartsWith("when this process first looked: "));
  EXPECT_THAT(why.remedy, HasSubstr("start it anew"));
  EXPECT_THAT(why.remedy, Not(HasSubstr("mknod")));
}

TEST_F(WhyNoFabricTest, SaysWhatIsLeftToMend) {
  now_.channels->front().usable = false;
  EXPECT_EQ(Why().id, "channel-denied");
  EXPECT_THAT(Why().remedy, HasSubstr("Then start this process anew"));
  now_.channels->front().usable = true;
  now_.daemon_seen = false;
  EXPECT_EQ(Why().id, "no-daemon");
}

TEST_F(WhyNoFabricTest, SaysOfWhatDidNotChangeWhatItIs) {
  now_ = seen_.imex;
  EXPECT_EQ(Why().id, "no-channel");
  EXPECT_THAT(Why().remedy, HasSubstr("mknod"));
  EXPECT_THAT(Why().remedy, Not(HasSubstr("anew")));
}

TEST_F(WhyNoFabricTest, OfASuccessIsNothing) {
  EXPECT_EQ(WhyNoFabric(seen_, now_, {true, absl::OkStatus()}), std::nullopt);
}

// Whatever the system says: where nothing is there is no channel.
TEST(ReadImex, LooksBelowTheRoot) {
  const fabric::ImexTopology imex = fabric::ReadImex("/nowhere");
  EXPECT_TRUE(!imex.channels.ok() || imex.channels->empty());
}

}  // namespace
}  // namespace vmm::job
