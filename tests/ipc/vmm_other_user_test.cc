// What another user may have of an endpoint that admits it, though it knows the
// tickets: what it is named for, and for reading where it is shared for that.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/ipc/planted_handles.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

constexpr char kNobody[] = "65534";
constexpr char kRefused[] = "PERMISSION_DENIED";

void ExpectCode(const absl::Status& status, const std::string& code) {
  EXPECT_EQ(absl::StatusCodeToString(status.code()), code) << status;
}

// As nobody: opens the ticket args[1] and subscribes to args[2], of an owner of
// user args[0]; args[3] is the code that comes for reading, args[4] for writing.
int HaveAsNobody(const Args& args) {
  BecomeNobody();
  const Here here;
  platform::PeerPolicy owners;
  owners.also_allowed.emplace_back(args[0]);
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    if (access == Access::kRead && IsTestOfLegacyIpc()) continue;
    const ImportOptions options = {
        .grants = {{Location::On(here.device), access}}};
    const std::string& code = args[access == Access::kRead ? 3 : 4];
    // Who has a text can change what it says of its access.
    AddressedTicket ticket = Must(ParseTicketString(args[1]));
    AddressedPool pool = Must(ParsePoolString(args[2]));
    for (int i = 0; i < 2; ++i) {
      ExpectCode(OpenTicket(TestDriver(), FormatTicketString(ticket), options,
                            Late(), owners)
                     .status(),
                 code);
      ExpectCode(ImportedPool::Subscribe(TestDriver(), FormatPoolString(pool),
                                         options, Late(), owners)
                     .status(),
                 code);
      ticket.invitation.access = Access::kReadWrite;
      pool.invitation.access = Access::kReadWrite;
    }
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kHaveAsNobody = RegisterChild("have-as-nobody", &HaveAsNobody);

class OtherUser : public IpcTest {
 protected:
  void SetUp() override {
    if (!MayBecomeAnotherUser()) {
      GTEST_SKIP() << "this process cannot become another user";
    }
    OpenToEverybody(directory());
  }
  // What nobody is answered of what is shared so.
  void ExpectFor(const ShareOptions& options, const std::string& read,
                 const std::string& write) {
    EndpointOptions where;
    where.listener.directory = listener_directory();
    where.peers.also_allowed.emplace_back(kNobody);
    const std::unique_ptr<Pool> pool =
        Must(Pool::Create(device, {.sharing = TestSharing()}));
    const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(where));
    const Allocation memory = MakePattern(kGranule, 4);
    const Share published =
        Must(endpoint->Publish(memory.shareable(), options));
    const Share served = Must(endpoint->Serve(*pool, options));
    Child nobody = Child::Start(
        "have-as-nobody", {platform::CurrentUser().text(), published.ticket(),
                           served.ticket(), read, write});
    EXPECT_EQ(nobody.Wait(), 0);
    EXPECT_EQ(endpoint->statistics().served > 0, read == "OK");
  }
};

TEST_F(OtherUser, WhoIsNotNamedIsRefusedThoughItKnowsTheTicket) {
  ExpectFor({.users = {{platform::UserId("12345")}}}, kRefused, kRefused);
  ExpectFor({.users = {std::vector<platform::UserId>()}}, kRefused, kRefused);
}

TEST_F(OtherUser, WhoIsNamedIsServed) {
  ExpectFor({.users = {{platform::UserId(kNobody)}}}, "OK", "OK");
}

TEST_F(OtherUser, WhoMayReadOnlyDoesNotWriteWhateverItsTicketSays) {
  ExpectFor({.access = Access::kRead}, "OK", kRefused);
}

}  // namespace
}  // namespace vmm::testing
