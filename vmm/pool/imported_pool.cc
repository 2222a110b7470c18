#include "vmm/pool/imported_pool.h"

#include <optional>
#include <string>
#include <utility>

#include "platform/base/abandon.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/shared_table_view.h"
#include "vmm/pool/internal/subscription.h"
#include "vmm/share/internal/dial.h"

namespace vmm {

ImportedBlock& ImportedBlock::operator=(ImportedBlock&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->Release(*this);
    pool_ = std::exchange(other.pool_, nullptr);
    address_ = other.address_;
    size_ = other.size_;
    segment_ = other.segment_;
    slot_ = other.slot_;
  }
  return *this;
}

ImportedBlock::~ImportedBlock() {
  if (pool_ != nullptr) pool_->Release(*this);
}

absl::StatusOr<std::unique_ptr<ImportedPool>> ImportedPool::Subscribe(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners) {
  ASSIGN_OR_RETURN(const AddressedPool parsed, ParsePoolString(ticket));
  const ShareInvitation& invitation = parsed.invitation;
  RETURN_IF_ERROR(CheckGranted(invitation.access, WantsToWrite(options)));
  std::optional<pool::Welcome> welcome;
  ASSIGN_OR_RETURN(
      Granted granted,
      DialShare(invitation.address, absl::MakeConstSpan(&invitation.key, 1),
                owners, "the pool's memory", deadline,
                [&](platform::Channel& channel) -> absl::Status {
                  ASSIGN_OR_RETURN(welcome,
                                   pool::ReceiveWelcome(channel, deadline));
                  return absl::OkStatus();
                }));
  absl::StatusOr<std::unique_ptr<pool::SharedTableView>> table =
      pool::SharedTableView::Open(welcome->table, welcome->holds,
                                  parsed.domain);
  absl::Status usable = table.status();
  if (usable.ok()) usable = CheckGranted(granted.access, WantsToWrite(options));
  if (!usable.ok()) {
    // Nothing was used; otherwise the owner had to wait for this process's end.
    pool::SendBye(granted.channel, deadline).IgnoreError();
    return usable;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<pool::Subscription> subscription,
                   pool::Subscription::Start(driver, std::move(granted.channel),
                                             *std::move(table), options));
  return std::unique_ptr<ImportedPool>(
      new ImportedPool(std::move(subscription)));
}

ImportedPool::ImportedPool(std::unique_ptr<pool::Subscription> subscription)
    : subscription_(std::move(subscription)) {}

ImportedPool::~ImportedPool() {
  if (!subscription_->IsOfAnotherProcess()) return;
  // The threads are the parent's, and so is what it holds.
  platform::Abandon(std::move(subscription_));
}

absl::StatusOr<ImportedBlock> ImportedPool::Import(const PoolTicket& ticket,
                                                   Deadline deadline) {
  return subscription_->Import(ticket, deadline);
}

absl::StatusOr<std::vector<ImportedBlock>> ImportedPool::ImportAll(
    absl::Span<const PoolTicket> tickets, Deadline deadline) {
  return subscription_->ImportAll(tickets, deadline);
}

absl::Status ImportedPool::ReleaseAfter(ImportedBlock&& block,
                                        CUstream stream) {
  return subscription_->ReleaseAfter(absl::MakeSpan(&block, 1), stream);
}

absl::Status ImportedPool::ReleaseAllAfter(std::vector<ImportedBlock>&& blocks,
                                           CUstream stream) {
  return subscription_->ReleaseAfter(absl::MakeSpan(blocks), stream);
}

void ImportedPool::KeepWhatIsForgotten() {
  subscription_->KeepWhatIsForgotten();
}

absl::Status ImportedPool::connection() const {
  return subscription_->connection();
}

std::vector<RecalledBlock> ImportedPool::Recalled() const {
  return subscription_->Recalled();
}

void ImportedPool::Watch(ImportedPoolWatch watch) {
  subscription_->Watch(std::move(watch));
}

ImportedPoolStatistics ImportedPool::statistics() const {
  return subscription_->statistics();
}

std::string ImportedPool::weakness() const { return subscription_->weakness(); }

}  // namespace vmm
