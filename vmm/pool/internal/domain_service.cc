#include "vmm/pool/internal/domain_service.h"

#include "platform/base/status_macros.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/pool.h"

namespace vmm {
namespace pool {

std::string DomainService::Format(const ShareInvitation& invitation) const {
  return FormatPoolString({domain_, invitation});
}

absl::Status DomainService::ServePeer(platform::Channel& channel,
                                      platform::PeerWatch watch,
                                      absl::Duration timeout,
                                      const platform::CancelEvent& cancel) {
  return core_->ServePeer(domain_, channel, std::move(watch), timeout, cancel);
}

}  // namespace pool

absl::StatusOr<std::shared_ptr<PeerService>> ServableDomain::MakeService() {
  ASSIGN_OR_RETURN(const DomainId id, core_->Serve(domain_));
  return std::make_shared<pool::DomainService>(core_, id);
}

}  // namespace vmm
