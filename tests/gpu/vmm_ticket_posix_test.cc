// Tickets in a process that cannot find out on which machine it is.
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/descriptor_limit_posix.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

// What is known of the machine is kept, so that this is a process's first call.
int MakeATicketWithoutDescriptors(const std::vector<std::string>&) {
  const Device device = FirstDevice();
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  Ticket none;
  none.kind = kNativeKind;
  none.host_memory_driver = TestDriver().is_host_memory();
  absl::Status made, usable;
  {
    const DescriptorLimit limit(0);
    made = MakeTicket(memory.shareable(), kNativeKind).status();
    usable = CheckUsableHere(none, TestDriver());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(made)) << made;
  EXPECT_TRUE(absl::IsResourceExhausted(usable)) << usable;
  const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
  Must(CheckUsableHere(ticket, TestDriver()));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckUsableHere(none, TestDriver())));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kMakeATicketWithoutDescriptors = RegisterChild(
    "make-a-ticket-without-descriptors", &MakeATicketWithoutDescriptors);

TEST(TicketWithoutDescriptors, IsNeitherMadeNorUsed) {
  EXPECT_EQ(Child::Start("make-a-ticket-without-descriptors", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
