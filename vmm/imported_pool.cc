#include "vmm/imported_pool.h"

#include <utility>

#include "platform/abandon.h"
#include "platform/annotate.h"
#include "vmm/pool/share_protocol.h"
#include "vmm/pool/shared_table_view.h"
#include "vmm/pool/subscription.h"
#include "vmm/ticket_string.h"

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
    const ImportOptions& options, absl::Time deadline,
    const platform::PeerPolicy& owners) {
  absl::StatusOr<AddressedPool> parsed = ParsePoolString(ticket);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<platform::Channel> channel =
      platform::Channel::Connect(parsed->address, owners, deadline);
  if (!channel.ok()) {
    return platform::Annotate(
        channel.status(), "nobody can be asked for the pool's memory",
        absl::IsNotFound(channel.status())
            ? "The owner has ended, or its socket directory is not mounted "
              "here (containers must share it)."
            : "");
  }
  absl::Status asked = pool::SendSubscribe(*channel, parsed->domain, deadline);
  if (!asked.ok()) return asked;
  absl::StatusOr<pool::Welcome> welcome =
      pool::ReceiveWelcome(*channel, deadline);
  if (!welcome.ok()) return welcome.status();
  absl::StatusOr<std::unique_ptr<pool::SharedTableView>> table =
      pool::SharedTableView::Open(welcome->table, welcome->holds,
                                  parsed->domain);
  if (!table.ok()) {
    // Nothing was used; otherwise the owner had to wait for this process's end.
    pool::SendBye(*channel, deadline).IgnoreError();
    return table.status();
  }
  absl::StatusOr<std::unique_ptr<pool::Subscription>> subscription =
      pool::Subscription::Start(driver, *std::move(channel), *std::move(table),
                                options);
  if (!subscription.ok()) return subscription.status();
  return std::unique_ptr<ImportedPool>(
      new ImportedPool(*std::move(subscription)));
}

ImportedPool::ImportedPool(std::unique_ptr<pool::Subscription> subscription)
    : subscription_(std::move(subscription)) {}

ImportedPool::~ImportedPool() {
  if (!subscription_->IsOfAnotherProcess()) return;
  // The threads are the parent's, and so is what it holds.
  platform::Abandon(std::move(subscription_));
}

absl::StatusOr<ImportedBlock> ImportedPool::Import(const PoolTicket& ticket,
                                                   absl::Time deadline) {
  return subscription_->Import(ticket, deadline);
}

absl::StatusOr<std::vector<ImportedBlock>> ImportedPool::ImportAll(
    absl::Span<const PoolTicket> tickets, absl::Time deadline) {
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

}  // namespace vmm
