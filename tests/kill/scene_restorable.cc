// Memory that its owner releases and restores, and an importer that lets go of it
// meanwhile.
#include <memory>
#include <optional>
#include <utility>

#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/restorable.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint64_t kOwners = 1;     // The pattern that the owner writes.
constexpr std::uint64_t kImporters = 2;  // Then the importer does.

// Whoever has died: what is there is all of it, at the address where it was.
template <typename Memory>
void ExpectWhole(const Memory& memory, CUdeviceptr address,
                 const std::vector<std::uint64_t>& seeds) {
  EXPECT_EQ(memory.address(), address);
  if (memory.is_released()) return;
  const Contents contents(address, kBytes, seeds);
}

}  // namespace

absl::Status OwnRestorable(Party& me) {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::Start({.listener = {.directory = me.directory()}});
  if (!endpoint.ok()) return endpoint.status();
  Allocation made = Must(Allocation::Create(me.device(), {.size = kBytes}));
  const CUdeviceptr address = made.address();
  WritePattern(address, kBytes, kOwners);
  absl::StatusOr<RestorableAllocation> memory = me.Now(
      "RestorableAllocation::Share",
      [&] { return RestorableAllocation::Share(**endpoint, std::move(made)); });
  if (!memory.ok()) return memory.status();
  absl::Status done = me.Tell(memory->ticket());
  if (done.ok()) done = me.Hear().status();  // "written"
  if (done.ok()) done = me.Tell("releasing");
  // Whether the importer lives or has been killed.
  const absl::Status released = me.Try(
      "RestorableAllocation::Release", Again::kYes, [&](absl::Time deadline) {
        return memory->Release(Keep::kHostMemory, deadline);
      });
  if (!released.ok()) return released;
  EXPECT_TRUE(memory->is_released());
  const absl::Status restored = me.Now("RestorableAllocation::Restore",
                                       [&] { return memory->Restore(); });
  if (!restored.ok()) return restored;
  EXPECT_FALSE(memory->is_released());
  std::vector<std::uint64_t> seeds = {kImporters};
  if (!me.HasHeard("written")) seeds.push_back(kOwners);
  ExpectWhole(*memory, address, seeds);
  if (done.ok()) done = me.Tell("restored");
  if (done.ok()) done = me.Hear().status();  // "checked"
  ExpectWhole(*memory, address, seeds);
  memory = absl::CancelledError();
  return done.ok() ? me.Tell("gone") : done;
}

absl::Status ImportRestorable(Party& me) {
  absl::StatusOr<std::string> ticket = me.Hear();
  if (!ticket.ok()) return ticket.status();
  absl::StatusOr<RestorableImport> memory =
      me.Try("RestorableImport::Open", Again::kYes, [&](absl::Time deadline) {
        return RestorableImport::Open(me.driver(), *ticket,
                                      {.access = Access::kReadWrite}, deadline);
      });
  if (!memory.ok()) return memory.status();
  const CUdeviceptr address = memory->address();
  ExpectWhole(*memory, address, {kOwners});
  WritePattern(address, kBytes, kImporters);
  absl::Status done = me.Tell("written");
  if (done.ok()) done = me.Hear().status();  // "releasing"
  // Until it is recalled, or the owner has gone: then it may be kept or let go.
  // An owner that stands still before it recalls is found at the deadline.
  const absl::Status recalled =
      me.Try("RestorableImport::lease", Again::kYes, [&](absl::Time deadline) {
        for (;;) {
          const LeaseStatus lease = memory->lease();
          if (!done.ok() || !lease.connection.ok() ||
              lease.return_by.has_value()) {
            return absl::OkStatus();
          }
          if (absl::Now() >= deadline) {
            return absl::DeadlineExceededError("nobody recalled the memory");
          }
          absl::SleepFor(absl::Milliseconds(1));
        }
      });
  if (!recalled.ok()) return recalled;
  ExpectWhole(*memory, address, {kImporters});
  const absl::Status released =
      me.Now("RestorableImport::Release", [&] { return memory->Release(); });
  if (!released.ok()) return released;
  if (done.ok()) done = me.Hear().status();  // "restored"
  const absl::Status restored =
      me.Try("RestorableImport::Restore", Again::kYes,
             [&](absl::Time deadline) { return memory->Restore(deadline); });
  // All of what the owner has now, or nothing.
  EXPECT_EQ(memory->is_released(), !restored.ok());
  ExpectWhole(*memory, address, {kImporters});
  if (!restored.ok()) return restored;
  if (done.ok()) done = me.Tell("checked");
  return done.ok() ? me.Hear().status() : done;  // "gone"
}

}  // namespace vmm::testing
