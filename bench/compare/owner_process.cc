#include "bench/compare/owner_process.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/compare/connection.h"
#include "bench/compare/gpu.h"
#include "bench/compare/link.h"
#include "bench/compare/wire.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"

namespace bench::compare {
namespace {

using vmm::platform::Channel;
using vmm::platform::Listener;
using vmm::platform::Message;

class Obedient {
 public:
  Obedient(const Options& options, const Route& route, Gpu& gpu,
           Listener& listener)
      : options_(options), route_(route), gpu_(gpu), listener_(listener) {}

  absl::Status Share() {
    ASSIGN_OR_RETURN(Channel importer, listener_.Accept(Deadline()));
    link_.emplace(std::move(importer));
    ASSIGN_OR_RETURN(connection_,
                     Connection::Open(gpu_, route_, *link_, options_.corrupt));
    ASSIGN_OR_RETURN(items_, connection_->Create({options_.max_size}, 1));
    absl::Status shared = connection_->Share(items_, {}).status();
    return shared.ok() ? connection_->Verify() : shared;
  }

  absl::Status Free(bool after_hang_up) {
    absl::Status status = after_hang_up
                              ? link_->channel().WaitForHangUp(Deadline())
                              : connection_->CloseAll().status();
    if (status.ok()) status = connection_->Free(items_).status();
    return status;
  }

  // Pools keep memory: again and again, since a peer may hold it for a while.
  absl::Status Trim() { return connection_->owner().Trim(); }

 private:
  const Options& options_;
  const Route& route_;
  Gpu& gpu_;
  Listener& listener_;
  std::optional<Link> link_;
  std::optional<Connection> connection_;
  std::vector<Item> items_;
};

}  // namespace

absl::Status RunOwner(const Options& options) {
  const Route* route = FindRoute(options.route);
  if (route == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--route=", options.route, ": there is none"));
  }
  ASSIGN_OR_RETURN(vmm::platform::Driver driver, LoadDriver(options.driver));
  ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu,
                   Gpu::Open(driver, options.device, options.device));
  ASSIGN_OR_RETURN(Channel observer,
                   Channel::Connect(options.connect, {}, Deadline()));
  ASSIGN_OR_RETURN(Listener listener, Listener::Bind({}, {}));
  Writer address;
  address.PutText(listener.address());
  absl::Status status = Send(observer, kGo, address);

  Obedient self(options, *route, *gpu, listener);
  bool freed = false;
  while (status.ok()) {
    absl::StatusOr<Message> order = observer.Receive(
        freed ? absl::Now() + absl::Milliseconds(1) : Deadline());
    if (freed && absl::IsDeadlineExceeded(order.status())) {
      status = self.Trim();
      continue;
    }
    if (!order.ok()) return order.status();
    const auto wanted = Reader(order->payload).Get<OwnerOrder>();
    switch (wanted) {
      case OwnerOrder::kShare:
        status = SendAnswer(observer, self.Share(), Answer{});
        break;
      case OwnerOrder::kFree:
      case OwnerOrder::kFreeAfterHangUp:
        status = self.Free(wanted == OwnerOrder::kFreeAfterHangUp);
        if (status.ok()) status = self.Trim();
        freed = true;
        break;
      case OwnerOrder::kEnd:
        return SendAnswer(observer, absl::OkStatus(), Answer{});
    }
  }
  return status;
}

}  // namespace bench::compare
