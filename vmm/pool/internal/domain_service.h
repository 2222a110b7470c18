// DomainService: how a sharing domain is served to those that come for it from
// an endpoint; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_SERVICE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_SERVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "vmm/pool/internal/core.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/servable.h"

namespace vmm::pool {

class DomainService final : public PeerService {
 public:
  // `domain` is one that `core` serves.
  DomainService(std::shared_ptr<Core> core, const DomainId& domain)
      : core_(std::move(core)), domain_(domain) {}

  std::string Format(const ShareInvitation& invitation) const override;
  absl::Status ServePeer(platform::Channel& channel, platform::PeerWatch watch,
                         absl::Duration timeout,
                         const platform::CancelEvent& cancel) override;
  bool Tidy() override { return core_->Tidy(domain_); }

 private:
  const std::shared_ptr<Core> core_;
  const DomainId domain_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_SERVICE_H_
