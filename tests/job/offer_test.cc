// What is said of memory that a rank cannot offer, or that another cannot have.
#include "vmm/job/internal/offer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver.h"
#include "platform/os/library.h"
#include "tests/job/samples.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"

namespace vmm::job {
namespace {

using fabric::JobCard;
using fabric::Refusal;
using ::testing::HasSubstr;
using testing::Must;
using testing::SampleCard;
using testing::TestDriver;

HandleKind Native() { return SharePolicy::Native().kinds().front(); }

absl::Status FromDriver(
    CUresult result,
    absl::StatusCode code = absl::StatusCode::kPermissionDenied) {
  absl::Status status(code, "cuMemImport() answered");
  status.SetPayload("vmmshare/CUresult", absl::Cord(std::to_string(result)));
  return status;
}

// Two ranks whose GPUs are in one NVLink domain, and both have a channel.
class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    for (JobCard* card : {&importer_, &owner_}) {
      card->offers[1] = {CU_MEM_HANDLE_TYPE_FABRIC, "a ticket", {}};
    }
  }
  Refusal Of(const absl::Status& status, HandleKind kind) const {
    return Explain(status, importer_, owner_, kind);
  }

  JobCard importer_ = SampleCard(0, 2);
  JobCard owner_ = SampleCard(1, 2);
};

TEST_F(ExplainTest, EachCodeOfTheSystemsOwnHandlesHasARemedy) {
  struct Case {
    absl::StatusCode code;
    const char* id;
    const char* remedy;
  };
  for (const Case& one :
       {Case{absl::StatusCode::kNotFound, "owner-unreachable", "containers"},
        Case{absl::StatusCode::kPermissionDenied, "other-user", "one user"},
        Case{absl::StatusCode::kDeadlineExceeded, "owner-silent", "hangs"},
        Case{absl::StatusCode::kUnavailable, "owner-silent", "hangs"},
        Case{absl::StatusCode::kFailedPrecondition, "no-peer-access", "topo"},
        Case{absl::StatusCode::kDataLoss, "wrong-data", "coherent"},
        Case{absl::StatusCode::kInternal, "import-refused", "errors.md"}}) {
    const Refusal refusal = Of(absl::Status(one.code, "so it was"), Native());
    EXPECT_EQ(refusal.code, one.code);
    EXPECT_EQ(refusal.finding.id, one.id);
    EXPECT_EQ(refusal.finding.text, "so it was");
    EXPECT_THAT(refusal.finding.remedy, HasSubstr(one.remedy)) << one.id;
  }
}

TEST_F(ExplainTest, WhoWasAskedWhenTheTimeWasOverIsNotCalledDead) {
  const Refusal refusal =
      Explain(absl::DeadlineExceededError("nothing came"), importer_, owner_,
              Native(), /*had_time=*/false);
  EXPECT_EQ(refusal.code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(refusal.finding.id, "no-time");
  EXPECT_EQ(refusal.finding.text, "nothing came");
  EXPECT_THAT(refusal.finding.remedy, HasSubstr("more of it"));
  // What else there is to say of it stays.
  EXPECT_EQ(Explain(absl::NotFoundError("gone"), importer_, owner_, Native(),
                    /*had_time=*/false)
                .finding.id,
            "owner-unreachable");
}

TEST_F(ExplainTest, WhatTheDriverRefusesIsNoTroubleOfTheSocket) {
  struct Case {
    CUresult result;
    absl::StatusCode code;
  };
  for (const Case& one :
       {Case{CUDA_ERROR_INVALID_DEVICE, absl::StatusCode::kNotFound},
        Case{CUDA_ERROR_NOT_PERMITTED, absl::StatusCode::kPermissionDenied},
        Case{CUDA_ERROR_INVALID_CONTEXT, absl::StatusCode::kFailedPrecondition},
        Case{CUDA_ERROR_TIMEOUT, absl::StatusCode::kDeadlineExceeded},
        Case{CUDA_ERROR_NOT_READY, absl::StatusCode::kUnavailable}}) {
    const Refusal refusal = Of(FromDriver(one.result, one.code), Native());
    EXPECT_EQ(refusal.code, one.code);
    EXPECT_EQ(refusal.finding.id, "import-refused") << one.result;
    EXPECT_THAT(refusal.finding.remedy,
                HasSubstr("this one is " + std::to_string(one.result) + "."));
    EXPECT_THAT(refusal.finding.remedy, HasSubstr("docs/errors.md"));
  }
  EXPECT_EQ(Of(FromDriver(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                          absl::StatusCode::kFailedPrecondition),
               Native())
                .finding.id,
            "no-peer-access");
}

TEST_F(ExplainTest, AFabricImportIsExplainedByWhatTheImporterLacks) {
  const absl::Status denied = FromDriver(CUDA_ERROR_NOT_PERMITTED);
  importer_.offers[1] = {
      CU_MEM_HANDLE_TYPE_FABRIC,
      "",
      {absl::StatusCode::kNotFound, {"no-channel", "there is none", "mknod"}}};
  const Refusal own = Of(denied, HandleKind::kFabric);
  EXPECT_EQ(own.finding.id, "no-channel");
  EXPECT_THAT(own.finding.text, HasSubstr("rank 0 (host node0, "));
  // One that shares no such memory itself is not kept from having another's.
  importer_.offers.pop_back();
  EXPECT_EQ(Of(denied, HandleKind::kFabric).finding.id, "other-channel");
}

TEST_F(ExplainTest, AFabricImportIsExplainedByTheTwoDomains) {
  const absl::Status status = FromDriver(CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Of(status, HandleKind::kFabric).finding.id, "import-refused");
  owner_.domain->clique = 8;
  const Refusal refusal = Of(status, HandleKind::kFabric);
  EXPECT_EQ(refusal.finding.id, "two-domains");
  EXPECT_THAT(refusal.finding.remedy,
              HasSubstr("(clique 7 of 01020300-0000-0000-0000-000000000000, "
                        "clique 8 of 01020300-"));
  // Where one is not known they are not known to be two.
  for (JobCard* card : {&owner_, &importer_}) {
    card->domain.reset();
    EXPECT_EQ(Of(status, HandleKind::kFabric).finding.id, "import-refused");
  }
}

TEST_F(ExplainTest, AFabricImportThatIsNotPermittedIsOfAnotherChannel) {
  EXPECT_EQ(
      Of(FromDriver(CUDA_ERROR_NOT_PERMITTED), HandleKind::kFabric).finding.id,
      "other-channel");
}

// A job of one rank, on which nobody calls.
fabric::CallbackExchange Alone() {
  fabric::ExchangeCallbacks callbacks;
  callbacks.put = [](const std::string&, absl::Span<const std::uint8_t>,
                     absl::Time) { return absl::OkStatus(); };
  callbacks.fence = [](absl::Time) { return absl::OkStatus(); };
  callbacks.get = [](int, const std::string&, absl::Time) {
    return absl::StatusOr<fabric::Bytes>(absl::NotFoundError("nothing"));
  };
  return fabric::CallbackExchange(std::move(callbacks));
}

TEST(Offer, OfWhatCannotBePublishedSaysWhy) {
  const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
  JobOptions options;
  options.listener.name = "no/name";
  Offer offer =
      Offer::Make(device, 4096, SharePolicy::Native(), Alone(), options);
  EXPECT_TRUE(offer.card().trouble.empty());
  ASSERT_EQ(offer.card().offers.size(), 1u);
  EXPECT_FALSE(offer.card().offers[0].usable());
  const Refusal& refusal = offer.card().offers[0].refusal;
  EXPECT_EQ(refusal.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal.finding.id, "no-socket");
  EXPECT_THAT(refusal.finding.text, HasSubstr("no/name"));
  // The rank can have the others' memory all the same.
  EXPECT_NE(offer.memory(), nullptr);
}

// The driver of a GPU, for all that vmmshare can tell.
platform::Driver OfAGpu() {
  if (!testing::OnHostMemoryDriver()) return TestDriver();
  const platform::Library library =
      Must(platform::Library::OpenPath(testing::HostDriverPath()));
  return Must(platform::Driver::LoadFromLookup(
      library.path(), [library](const char* symbol) -> void* {
        // The mark by which the host-memory driver is known.
        if (absl::string_view(symbol) == "vmmshareHostDriverVersion") {
          return nullptr;
        }
        return library.Find(symbol);
      }));
}

// Whatever the system's NVML says, if there is one, and whether or not what the
// driver exports is a GPU's: the rank has memory, or its card says why not.
TEST(Offer, OfAGpuAsksTheSystemsNvml) {
  const Device device = Must(Device::ByOrdinal(OfAGpu(), 0));
  Offer offer = Offer::Make(device, 4096, JobSharing(), Alone(), {});
  const JobCard& card = offer.card();
  EXPECT_FALSE(card.host_memory_driver);
  EXPECT_EQ(card.device_name, device.name());
  EXPECT_EQ(card.device, device.uuid().bytes);
  EXPECT_EQ(card.trouble.empty(), offer.memory() != nullptr);
  EXPECT_EQ(card.offers.size(), card.trouble.empty() ? 2u : 0u);
  const absl::StatusOr<JobCard> read = fabric::DecodeCard(EncodeCard(card));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->offers, card.offers);
  EXPECT_EQ(read->domain, card.domain);
}

TEST(Offer, OfARankInTroubleHasNoMemory) {
  Offer offer = Offer::Make(absl::NotFoundError("no driver"), 4096,
                            SharePolicy::Native(), Alone(), {});
  EXPECT_EQ(offer.card().trouble.finding.id, "no-device");
  EXPECT_EQ(offer.card().trouble.finding.text, "no driver");
  EXPECT_TRUE(offer.card().offers.empty());
  EXPECT_EQ(offer.memory(), nullptr);
}

}  // namespace
}  // namespace vmm::job
