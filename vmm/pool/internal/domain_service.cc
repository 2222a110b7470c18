// How a sharing domain is served to those that come for it from an endpoint.
#include <memory>
#include <string>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/pool.h"
#include "vmm/share/servable.h"

namespace vmm {
namespace {

class DomainService final : public PeerService {
 public:
  // `domain` is one that `core` serves.
  DomainService(std::shared_ptr<pool::Core> core, const DomainId& domain)
      : core_(std::move(core)), domain_(domain) {}

  std::string Format(const ShareInvitation& invitation) const override {
    return FormatPoolString({domain_, invitation});
  }
  absl::Status ServePeer(platform::Channel& channel, platform::PeerWatch watch,
                         absl::Duration timeout,
                         const platform::CancelEvent& cancel) override {
    return core_->ServePeer(domain_, channel, std::move(watch), timeout,
                            cancel);
  }
  bool Tidy() override { return core_->Tidy(domain_); }

 private:
  const std::shared_ptr<pool::Core> core_;
  const DomainId domain_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<PeerService>> ServableDomain::MakeService() {
  ASSIGN_OR_RETURN(const DomainId id, core_->Serve(domain_));
  return std::make_shared<DomainService>(core_, id);
}

}  // namespace vmm
