// RingHome: the memory that rings of one process share.
#include <utility>

#include "platform/base/abandon.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/queue/ring.h"

namespace vmm {

absl::StatusOr<std::unique_ptr<RingHome>> RingHome::Create(
    const Device& device, const RingHomeOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool,
                   Pool::Create(device, options.pool));
  ASSIGN_OR_RETURN(std::unique_ptr<FencePool> fences,
                   FencePool::Create(device, options.fences));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint,
                   Endpoint::Start(options.endpoint));
  ASSIGN_OR_RETURN(Share pool_served, endpoint->Serve(*pool));
  ASSIGN_OR_RETURN(Share fences_served, endpoint->Serve(fences->pool()));
  return std::unique_ptr<RingHome>(
      new RingHome(std::make_unique<SpareContext>(device), std::move(pool),
                   std::move(fences), std::move(endpoint),
                   std::move(pool_served), std::move(fences_served)));
}

RingHome::RingHome(std::unique_ptr<SpareContext> spare,
                   std::unique_ptr<Pool> pool,
                   std::unique_ptr<FencePool> fences,
                   std::unique_ptr<Endpoint> endpoint, Share pool_served,
                   Share fences_served)
    : spare_(std::move(spare)),
      pool_(std::move(pool)),
      fences_(std::move(fences)),
      endpoint_(std::move(endpoint)),
      pool_served_(std::move(pool_served)),
      fences_served_(std::move(fences_served)) {}

RingHome::~RingHome() {
  if (!made_.is_still_here()) {
    platform::Abandon(std::move(spare_));
    return;
  }
  platform::Check(writers_ == 0,
                  "a RingHome is destroyed while RingWriters of it live; "
                  "destroy them first");
}

}  // namespace vmm
