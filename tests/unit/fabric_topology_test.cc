#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "fabric/topology.h"

namespace vmm::fabric {
namespace {

constexpr char kNowhere[] = "/nowhere";

GpuTopology Joined(unsigned char cluster, unsigned clique) {
  FabricInfo info;
  info.state = FabricState::kCompleted;
  info.cluster.fill(cluster);
  info.clique = clique;
  return {{}, Nvml::Gpu(), info, false};
}

TEST(Topology, WithoutNvmlSaysWhyAtEachPlaceAndKeepsTheOrder) {
  const absl::Status reason = absl::NotFoundError("no NVML");
  const std::vector<Uuid> uuids = {Uuid{1}, Uuid{2}};
  const Topology topology = ReadTopology(reason, uuids, kNowhere);
  EXPECT_EQ(topology.driver_version.status(), reason);
  ASSERT_EQ(topology.gpus.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(topology.gpus[i].uuid, uuids[i]);
    EXPECT_EQ(topology.gpus[i].gpu.status(), reason);
    EXPECT_EQ(topology.gpus[i].fabric.status(), reason);
    EXPECT_EQ(topology.gpus[i].in_mig_mode.status(), reason);
  }
  EXPECT_TRUE(topology.imex.channels.ok());
}

TEST(Topology, WithoutNvmlAsksOtherwise) {
  FabricInfo info;
  info.clique = 7;
  const std::vector<Uuid> uuids = {Uuid{1}, Uuid{2}};
  const Topology topology =
      ReadTopology(absl::NotFoundError("no NVML"), uuids, kNowhere,
                   [&](std::size_t i) -> absl::StatusOr<FabricInfo> {
                     if (i == 0) return info;
                     return absl::UnimplementedError("too old");
                   });
  ASSERT_TRUE(topology.gpus[0].fabric.ok());
  EXPECT_EQ(topology.gpus[0].fabric->clique, 7u);
  EXPECT_EQ(topology.gpus[0].in_mig_mode.status(), topology.nvml.status());
  const absl::Status neither = topology.gpus[1].fabric.status();
  EXPECT_EQ(neither.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(neither.message(),
            "no NVML. Of the fabric the CUDA driver says nothing either: too "
            "old");
}

TEST(Topology, WithoutNvmlJoinsTheTwoReasonsByOneFullStop) {
  const Topology topology = ReadTopology(
      absl::NotFoundError("Install it."), std::vector<Uuid>{Uuid{1}}, kNowhere,
      [](std::size_t) { return absl::UnimplementedError("too old"); });
  EXPECT_EQ(topology.gpus[0].fabric.status().message(),
            "Install it. Of the fabric the CUDA driver says nothing either: "
            "too old");
}

TEST(Topology, WithoutDevicesStillTellsOfTheMachine) {
  const Topology topology =
      ReadTopology(absl::NotFoundError("no NVML"), {}, kNowhere);
  EXPECT_TRUE(topology.gpus.empty());
  EXPECT_TRUE(topology.imex.channels->empty());
}

TEST(OneDomain, IsTheSameClusterAndClique) {
  EXPECT_EQ(InOneDomain(Joined(1, 2), Joined(1, 2)), true);
  EXPECT_EQ(InOneDomain(Joined(1, 2), Joined(1, 3)), false);
  EXPECT_EQ(InOneDomain(Joined(1, 2), Joined(2, 2)), false);
}

TEST(OneDomain, IsNotThatOfAGpuThatHasNotJoined) {
  GpuTopology late = Joined(1, 2);
  late.fabric->state = FabricState::kInProgress;
  EXPECT_EQ(InOneDomain(Joined(1, 2), late), false);
  GpuTopology failed = Joined(1, 2);
  failed.fabric->status = 15;
  EXPECT_EQ(InOneDomain(failed, Joined(1, 2)), false);
}

TEST(OneDomain, IsUnknownWithoutAnAnswer) {
  GpuTopology silent = Joined(1, 2);
  silent.fabric = absl::UnimplementedError("too old");
  EXPECT_EQ(InOneDomain(Joined(1, 2), silent), std::nullopt);
  EXPECT_EQ(InOneDomain(silent, Joined(1, 2)), std::nullopt);
}

}  // namespace
}  // namespace vmm::fabric
