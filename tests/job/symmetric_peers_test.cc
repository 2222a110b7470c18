// Symmetric memory of ranks of which one says what no rank should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fabric/job_card.h"
#include "fabric/job_record.h"
#include "tests/job/local_job.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "vmm/job/symmetric.h"
#include "vmm/memory/device.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using job::SymmetricMemory;
using job::SymmetricOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What both ranks of a job were told, which is the same, where what rank 1 says
// of `what` goes through `change`.
absl::Status Told(const std::string& what,
                  const std::function<void(fabric::Bytes&)>& change,
                  const SymmetricOptions& options = {.size = 1000}) {
  LocalJob job(2);
  job.tamper = [&](int rank, const std::string& key, fabric::Bytes& value) {
    if (rank == 1 && absl::StrContains(key, what)) change(value);
  };
  absl::Status told[2];
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    told[rank] = SymmetricMemory::Create(Device::ByOrdinal(TestDriver(), 0),
                                         exchange, options, Late())
                     .status();
  });
  EXPECT_EQ(told[0].code(), told[1].code()) << told[0] << '\n' << told[1];
  return told[0];
}

TEST(SymmetricPeers, ACardOfAnotherVersionIsNamed) {
  const absl::Status status =
      Told("ticket", [](fabric::Bytes& value) { value[4] = 9; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the card of rank 1"),
                    HasSubstr("Install the same vmmshare")));
}

TEST(SymmetricPeers, MoreBytesThanThereAreAddressesAreRefused) {
  const absl::Status status = Told("ticket", [](fabric::Bytes& value) {
    fabric::JobCard card = Must(fabric::DecodeCard(value));
    card.mapped_size = UINT64_MAX / 2 + 1;
    value = fabric::EncodeCard(card);
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("2 ranks of 9223372036854775808 bytes are more "
                      "than there are addresses"),
            HasSubstr("[no-addresses]"), HasSubstr("Without one_range")));
}

TEST(SymmetricPeers, AnOutcomeThatIsNoneIsNamed) {
  const absl::Status status =
      Told("outcome", [](fabric::Bytes& value) { value.back() ^= 1; });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("rank 1 (host "), HasSubstr("the checksum is wrong")));
}

TEST(SymmetricPeers, AnOutcomeThatFailedFailsOnAll) {
  const absl::Status status = Told("outcome", [](fabric::Bytes& value) {
    value = fabric::EncodeVerdict(
        {absl::StatusCode::kUnavailable, {"no-luck", "it had none", "Try"}});
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 (host "),
                    HasSubstr("it had none [no-luck]. Try")));
}

// Not the kinds that a job's memory never has, whichever was named first; and each
// of the others is tried once.
TEST(SymmetricPeers, WhyTheKindThatThereIsDidNotWorkIsTold) {
  const HandleKind native = SharePolicy::Native().kinds().front();
  SymmetricOptions options = {.size = 1000};
  options.sharing =
      SharePolicy::AnyOf({HandleKind::kLegacyIpc, native, native});
  const absl::Status status = Told(
      "ticket",
      [](fabric::Bytes& value) {
        fabric::JobCard card = Must(fabric::DecodeCard(value));
        for (fabric::JobOffer& offer : card.offers) {
          AddressedTicket ticket = Must(ParseTicketString(offer.ticket));
          char& last = ticket.invitation.address.back();
          last = last == '0' ? '1' : '0';
          offer.ticket = FormatTicketString(ticket);
        }
        value = fabric::EncodeCard(card);
      },
      options);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  const absl::string_view kind =
      fabric::KindName(static_cast<CUmemAllocationHandleType>(native));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("[owner-unreachable]"), HasSubstr(kind),
                    Not(HasSubstr(absl::StrCat(kind, ", ", kind))),
                    Not(HasSubstr("[not-offered]"))));
}

TEST(SymmetricPeers, PrivateMemoryIsRefused) {
  for (const bool one_range : {true, false}) {
    SymmetricOptions options = {.size = 1000};
    options.sharing = SharePolicy::Private();
    options.one_range = one_range;
    const absl::Status status = Told(
        "", [](fabric::Bytes&) {}, options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("symmetric memory cannot be private"),
                      HasSubstr("SymmetricOptions::sharing")));
  }
}

// Its memory is mapped by then, and goes again.
TEST(SymmetricPeers, ARankThatIsLostBeforeItsOutcomeIsNamed) {
  LocalJob job(2);
  job.RunAll([&job](int rank, fabric::Exchange&) {
    const absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
    fabric::ExchangeCallbacks callbacks = job.Callbacks(rank);
    callbacks.put = [rank, put = callbacks.put](
                        const std::string& key,
                        absl::Span<const std::uint8_t> value,
                        absl::Time deadline) -> absl::Status {
      if (rank == 1 && absl::StrContains(key, "outcome")) {
        return absl::UnavailableError("lost");
      }
      return put(key, value, deadline);
    };
    if (rank == 0) {
      // The medium tells it so: nobody waits for the deadline.
      callbacks.fence = [fence = callbacks.fence, rounds = 0](
                            absl::Time deadline) mutable -> absl::Status {
        if (++rounds == 2) return absl::UnavailableError("a rank was lost");
        return fence(deadline);
      };
      callbacks.get =
          [get = callbacks.get](
              int of, const std::string& key,
              absl::Time deadline) -> absl::StatusOr<fabric::Bytes> {
        if (of == 1 && absl::StrContains(key, "outcome")) {
          return absl::NotFoundError("nothing put");
        }
        return get(of, key, deadline);
      };
    }
    fabric::CallbackExchange exchange(callbacks);
    const absl::Status status =
        SymmetricMemory::Create(device, exchange, {.size = 1000}, Late())
            .status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(rank == 0 ? "no outcome came from rank 1"
                                    : "rank 1 cannot tell the others"));
  });
}

}  // namespace
}  // namespace vmm::testing
