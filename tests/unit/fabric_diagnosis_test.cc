// The conclusions, on made-up facts; tests/tool has them from a whole machine.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "fabric/diagnosis.h"

namespace vmm::fabric {
namespace {

using platform::ImexChannel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr unsigned kMajor = 242;

// A driver's refusal, as platform::Driver makes it.
absl::Status Refused(int result = CUDA_ERROR_NOT_PERMITTED) {
  absl::Status status = absl::PermissionDeniedError("cuMemCreate() answered");
  status.SetPayload("vmmshare/CUresult", absl::Cord(std::to_string(result)));
  return status;
}

ImexChannel Channel() {
  ImexChannel channel;
  channel.path = "/dev/nvidia-caps-imex-channels/channel0";
  channel.number = 0;
  channel.usable = true;
  channel.is_device = true;
  channel.major = kMajor;
  channel.mode = 0600;
  channel.owner = platform::UserId("1000");
  return channel;
}

class DiagnosisTest : public ::testing::Test {
 protected:
  DiagnosisTest() {
    FabricInfo info;
    info.state = FabricState::kCompleted;
    info.cluster.fill(1);
    topology_.gpus.push_back({{}, Nvml::Gpu(), info, false});
  }

  std::vector<std::string> Why() const {
    std::vector<std::string> ids;
    for (const Finding& finding :
         WhyNotFabric(topology_, topology_.gpus[0], attempt_)) {
      EXPECT_FALSE(finding.text.empty());
      EXPECT_FALSE(finding.remedy.empty());
      ids.push_back(finding.id);
    }
    return ids;
  }
  std::vector<std::string> NoteIds() const {
    std::vector<std::string> ids;
    for (const Finding& note : Notes(topology_)) ids.push_back(note.id);
    return ids;
  }
  FabricInfo& info() { return *topology_.gpus[0].fabric; }

  Topology topology_ = {absl::NotFoundError("not asked here"),
                        std::string("580.159.04"),
                        false,
                        {},
                        {std::vector<ImexChannel>{Channel()},
                         std::optional<unsigned>(kMajor), true}};
  FabricAttempt attempt_ = {true, Refused()};
};

TEST_F(DiagnosisTest, OfASuccessIsEmpty) {
  attempt_.tried = absl::OkStatus();
  info().state = FabricState::kNotSupported;
  topology_.imex.channels->clear();
  EXPECT_THAT(Why(), IsEmpty());
}

TEST_F(DiagnosisTest, OfAFailureIsNeverEmpty) {
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
  // Whatever could not be learned.
  topology_.gpus[0].fabric = absl::UnimplementedError("too old");
  topology_.gpus[0].in_mig_mode = absl::UnimplementedError("too old");
  topology_.imex.major = absl::PermissionDeniedError("hidden");
  topology_.imex.daemon_seen = absl::PermissionDeniedError("hidden");
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
}

class Pitfall04 : public DiagnosisTest {};
TEST_F(Pitfall04, EveryResultOfTheDriverIsExplained) {
  for (int result : {1, 101, 400, 800, 801, 802, 999}) {
    attempt_.tried = Refused(result);
    EXPECT_THAT(Why(), ElementsAre("domain-not-ready")) << result;
  }
  attempt_.tried = absl::DataLossError("read back something else");
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
  attempt_.attribute = absl::InvalidArgumentError("an older driver");
  EXPECT_THAT(Why(), ElementsAre("no-attribute"));
}

TEST_F(DiagnosisTest, OfAFullDeviceBlamesNothingElse) {
  attempt_.tried = Refused(CUDA_ERROR_OUT_OF_MEMORY);
  topology_.imex.channels->clear();
  EXPECT_THAT(Why(), ElementsAre("out-of-memory"));
  // A keeper has no context, so that nvidia-smi does not name it.
  EXPECT_THAT(
      WhyNotFabric(topology_, topology_.gpus[0], attempt_).front().remedy,
      HasSubstr("vmmshare keep --list"));
}

TEST_F(DiagnosisTest, PutsTheGpuBeforeTheChannel) {
  attempt_.attribute = false;
  topology_.gpus[0].in_mig_mode = true;
  info().state = FabricState::kNotStarted;
  topology_.imex.channels->clear();
  EXPECT_THAT(Why(), ElementsAre("no-attribute", "mig", "fabric-not-ready",
                                 "no-channel"));
}

TEST_F(DiagnosisTest, IgnoresTheStatusOfAFabricThatIsNotReady) {
  info().state = FabricState::kInProgress;
  info().status = 27;
  EXPECT_THAT(Why(), ElementsAre("fabric-not-ready"));
}

// CUDA 13.4's FABRIC_NOT_READY, with NVML and without.
TEST_F(DiagnosisTest, BelievesTheDriverThatTheFabricIsNotReady) {
  constexpr int kNotReady = 919;
  attempt_.tried = Refused(kNotReady);
  EXPECT_THAT(Why(), ElementsAre("fabric-not-ready"));
  info().state = FabricState::kInProgress;
  const std::vector<Finding> why =
      WhyNotFabric(topology_, topology_.gpus[0], attempt_);
  ASSERT_EQ(why.size(), 1u) << "it is said once";
  EXPECT_THAT(why[0].text, HasSubstr("the driver says"));
  EXPECT_THAT(why[0].remedy, HasSubstr("Try again"));
  topology_.gpus[0].fabric = absl::NotFoundError("no NVML");
  EXPECT_THAT(Why(), ElementsAre("fabric-not-ready"));
  // What else keeps it from working comes after it.
  topology_.imex.channels->clear();
  EXPECT_THAT(Why(), ElementsAre("fabric-not-ready", "no-channel"));
}

TEST_F(DiagnosisTest, OfADomainThatTheDriverNamedSaysWhatIsLeft) {
  info().of_driver = true;
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
  info().cluster = {};
  EXPECT_THAT(Why(), ElementsAre("no-cluster"));
  EXPECT_THAT(Notes(topology_)[0].remedy, HasSubstr("all but cluster"));
  topology_.gpus[0].fabric = absl::NotFoundError("no NVML, and no driver");
  EXPECT_THAT(Notes(topology_)[0].text, HasSubstr("and no driver"));
}

TEST_F(DiagnosisTest, NamesTheDaemonOnlyInADomain) {
  topology_.imex.daemon_seen = false;
  EXPECT_THAT(Why(), ElementsAre("no-daemon"));
  info().cluster = {};
  EXPECT_THAT(Why(), ElementsAre("no-cluster"));
}

TEST_F(DiagnosisTest, IsContentWithOneGoodChannelOfSeveral) {
  ImexChannel denied = Channel();
  denied.usable = false;
  denied.reason = absl::PermissionDeniedError("open() failed");
  topology_.imex.channels->insert(topology_.imex.channels->begin(), denied);
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
}

TEST_F(DiagnosisTest, OfADeniedChannelSaysModeOwnerAndWhoAsks) {
  ImexChannel& channel = topology_.imex.channels->front();
  channel.usable = false;
  channel.reason = absl::PermissionDeniedError("open() failed: EPERM");
  const std::vector<Finding> why =
      WhyNotFabric(topology_, topology_.gpus[0], attempt_);
  ASSERT_EQ(why.size(), 1u);
  EXPECT_EQ(why[0].id, "channel-denied");
  for (const std::string& part :
       {std::string("mode 0600"), std::string("owner 1000"),
        std::string("EPERM"), platform::CurrentUser().text()}) {
    EXPECT_THAT(why[0].text, HasSubstr(part));
  }
}

TEST_F(DiagnosisTest, TakesAnotherMajorForANodeFromBeforeAReboot) {
  topology_.imex.channels->front().major = kMajor + 1;
  EXPECT_THAT(Why(), ElementsAre("channel-stale"));
  topology_.imex.major = absl::PermissionDeniedError("hidden");
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready")) << "it is not known";
}

TEST_F(DiagnosisTest, OfNoNodeGivesTheMajorNumberToMakeItWithWhereItIsKnown) {
  topology_.imex.channels->clear();
  const auto remedy = [this] {
    const std::vector<Finding> why =
        WhyNotFabric(topology_, topology_.gpus[0], attempt_);
    return why.empty() ? "" : why[0].remedy;
  };
  EXPECT_THAT(remedy(), HasSubstr("channel0 c 242 0."));
  topology_.imex.major = absl::PermissionDeniedError("hidden");
  EXPECT_THAT(remedy(), HasSubstr("channel0 c MAJOR 0."));
}

TEST_F(DiagnosisTest, OfAMigInstanceSendsToItsGpuAlone) {
  topology_.gpus[0].in_mig_mode = true;
  const auto remedy = [this] {
    const std::vector<Finding> why =
        WhyNotFabric(topology_, topology_.gpus[0], attempt_);
    return why.empty() ? "" : why[0].remedy;
  };
  EXPECT_THAT(remedy(),
              HasSubstr("-i GPU-00000000-0000-0000-0000-000000000000 -mig 0,"));
  topology_.gpus[0].gpu->is_mig_instance = true;
  EXPECT_THAT(remedy(), HasSubstr("-i N -mig 0 (N: its GPU's index"));
  // Nobody says whose UUID it is.
  topology_.gpus[0].gpu = absl::UnavailableError("");
  EXPECT_THAT(SmiOf(topology_.gpus[0], "-c DEFAULT"),
              HasSubstr("-c DEFAULT (of a MIG instance -i its GPU's index"));
}

// A newer NVML may have states that this one has no name for.
TEST_F(DiagnosisTest, OfAStateWithoutANameGoesByTheStatusOfJoining) {
  info().state = static_cast<FabricState>(9);
  EXPECT_THAT(Why(), ElementsAre("domain-not-ready"));
  info().status = 27;
  EXPECT_THAT(Why(), ElementsAre("fabric-failed"));
}

TEST_F(DiagnosisTest, NotesOfAMachineWithoutGpusWhyNvmlCouldNotBeAsked) {
  topology_.gpus.clear();
  const std::vector<Finding> notes = Notes(topology_);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].id, "no-nvml");
  EXPECT_EQ(notes[0].text, "not asked here");
  EXPECT_THAT(notes[0].remedy, HasSubstr("the fabric's state, NVLink"));
  // Where there is no driver nothing works.
  EXPECT_THAT(notes[0].remedy, Not(HasSubstr("Sharing works")));
}

TEST_F(DiagnosisTest, OfWindowsDoesNotAskForANode) {
  topology_.imex = {std::vector<ImexChannel>(),
                    absl::UnimplementedError("no IMEX channel nodes"),
                    absl::UnimplementedError("no IMEX daemon")};
  EXPECT_THAT(Why(), ElementsAre("no-imex"));
}

TEST_F(DiagnosisTest, NotesTwoDomainsOnlyAmongGpusThatJoined) {
  topology_.gpus.push_back(topology_.gpus[0]);
  EXPECT_THAT(NoteIds(), ElementsAre("no-nvml"));
  topology_.gpus[1].fabric->clique = 9;
  EXPECT_THAT(NoteIds(), ElementsAre("no-nvml", "two-domains"));
  topology_.gpus[1].fabric->state = FabricState::kInProgress;
  EXPECT_THAT(NoteIds(), ElementsAre("no-nvml"));
}

TEST_F(DiagnosisTest, NotesChannelsThatEveryUserMayOpen) {
  topology_.imex.channels->front().mode = 0666;
  EXPECT_THAT(NoteIds(), ElementsAre("no-nvml", "channel-world-writable"));
  // What is no device opens nothing.
  topology_.imex.channels->front().is_device = false;
  EXPECT_THAT(NoteIds(), ElementsAre("no-nvml"));
}

}  // namespace
}  // namespace vmm::fabric
