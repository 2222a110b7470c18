#include "vmm/sync/fence_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/sync/internal/fence_source.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm {
namespace {

// A page of the driver's, and the largest segment: 262,144 fences.
constexpr std::uint64_t kFirstSegment = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargestSegment = std::uint64_t{64} << 20;
// Pieces of memory that are worn out, in a row, before it is given up: one is
// so after 30,000 fences that were abandoned, or if a peer has written there.
constexpr int kWornOut = 16;

absl::Status CheckAll(const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    RETURN_IF_ERROR(fence::CheckStreamOperations(device));
  }
  return absl::OkStatus();
}

}  // namespace

class FencePool::Core : public fence::PooledSource {
 public:
  Core(const Device& device, std::unique_ptr<Pool> pool, std::uint64_t tag)
      : PooledSource(device.driver(), device),
        tag_(tag),
        pool_(std::move(pool)) {}
  ~Core() override { DropWaiting(); }

  absl::StatusOr<CUdeviceptr> Take(std::uint64_t* base) {
    Collect();
    for (int i = 0; i < kWornOut; ++i) {
      ASSIGN_OR_RETURN(const CUdeviceptr block,
                       pool_->Allocate(kFenceBytes, nullptr));
      *base = fence::Renew(fence::WordsAt(block), tag_);
      if (*base <= fence::kLastBase) return block;
      // Kept, so that it is not handed out again.
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        kWornOut,
        " pieces of the pool's memory in a row are used up: a process that has "
        "the pool writes to fences that are not there"));
  }
  Pool& pool() { return *pool_; }

 private:
  void GiveBackNow(fence::Leaving fence) override {
    // The words do not need the stream's order: see fence_words.h.
    pool_->Free(fence.at, nullptr).IgnoreError();
  }

  const std::uint64_t tag_;
  const std::unique_ptr<Pool> pool_;
};

absl::StatusOr<std::unique_ptr<FencePool>> FencePool::Create(
    const Device& device, const FencePoolOptions& options) {
  RETURN_IF_ERROR(fence::CheckStreamOperations(device));
  RETURN_IF_ERROR(CheckAll(options.devices));
  ASSIGN_OR_RETURN(const int node, options.host_numa_node.has_value()
                                       ? *options.host_numa_node
                                       : HostNodeOf(device));
  PoolOptions pool_options{.sharing = options.sharing,
                           .first_segment_size = kFirstSegment,
                           .max_segment_size = kLargestSegment,
                           .host_numa_node = node};
  pool_options.also.push_back({Location::HostNuma(node), Access::kReadWrite});
  for (const Device& other : options.devices) {
    if (other == device) continue;
    pool_options.also.push_back({Location::On(other), Access::kReadWrite});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool,
                   Pool::Create(device, pool_options));
  std::uint64_t tag = 0;
  RETURN_IF_ERROR(platform::FillRandom(
      {reinterpret_cast<std::uint8_t*>(&tag), sizeof(tag)}));
  auto core = std::make_shared<Core>(device, std::move(pool), tag | 1);
  std::unique_ptr<FencePool> fences(new FencePool(std::move(core)));
  RETURN_IF_ERROR(fences->Reserve(options.room));
  return fences;
}

FencePool::FencePool(std::shared_ptr<Core> core) : core_(std::move(core)) {}

FencePool::~FencePool() {
  if (core_->IsOfAnotherProcess()) platform::Abandon(std::move(core_));
}

absl::StatusOr<Fence> FencePool::New() {
  std::uint64_t base = 0;
  ASSIGN_OR_RETURN(const CUdeviceptr at, core_->Take(&base));
  core_->CountNew();
  return Fence(core_, at, base, std::nullopt);
}

absl::StatusOr<FenceTicket> FencePool::Export(const Fence& fence) {
  RETURN_IF_ERROR(fence.CheckUsable());
  if (fence.source_ != core_) {
    return absl::InvalidArgumentError(
        "the fence is of another pool; the one that made it exports it");
  }
  ASSIGN_OR_RETURN(const PoolTicket block, core_->pool().Export(fence.at_));
  return FenceOf(block);
}

absl::Status FencePool::Reserve(std::uint64_t fences) {
  if (fences > kPoolSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", fences, " fences was asked for; expected ",
                     kPoolSlots, " at most"));
  }
  return core_->pool().Reserve(fences * kFenceBytes, nullptr);
}

Pool& FencePool::pool() { return core_->pool(); }

FencePoolStatistics FencePool::statistics() const {
  return {core_->fences(), core_->waiting(),
          core_->pool().statistics().reserved};
}

class ImportedFencePool::Core : public fence::PooledSource {
 public:
  Core(const platform::Driver& driver, const std::vector<Device>& devices,
       std::unique_ptr<ImportedPool> pool)
      : PooledSource(driver, devices.size() == 1
                                 ? std::optional<Device>(devices.front())
                                 : std::nullopt),
        pool_(std::move(pool)) {}
  // Blocks go before their pool.
  ~Core() override { DropWaiting(); }

  ImportedPool& pool() { return *pool_; }

 private:
  void GiveBackNow(fence::Leaving fence) override { fence.block.reset(); }

  const std::unique_ptr<ImportedPool> pool_;
};

absl::StatusOr<std::unique_ptr<ImportedFencePool>> ImportedFencePool::Subscribe(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportFencesOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners) {
  std::vector<Device> devices = options.devices;
  if (devices.empty()) {
    // One of these is the pool's own.
    ASSIGN_OR_RETURN(devices, Device::All(driver));
  }
  RETURN_IF_ERROR(CheckAll(devices));
  ImportOptions import{.access = Access::kReadWrite,
                       .host_access = Access::kReadWrite,
                       .host_memory_only = true};
  for (const Device& device : options.devices) {
    import.grants.push_back({Location::On(device), Access::kReadWrite});
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<ImportedPool> pool,
      ImportedPool::Subscribe(driver, ticket, import, deadline, owners));
  // What the owner forgets a stream of this process may still wait for, and no
  // word there says that it does not: whoever has the pool writes them.
  pool->KeepWhatIsForgotten();
  return std::unique_ptr<ImportedFencePool>(new ImportedFencePool(
      std::make_shared<Core>(driver, devices, std::move(pool))));
}

ImportedFencePool::ImportedFencePool(std::shared_ptr<Core> core)
    : core_(std::move(core)) {}

ImportedFencePool::~ImportedFencePool() {
  if (core_->IsOfAnotherProcess()) platform::Abandon(std::move(core_));
}

absl::StatusOr<Fence> ImportedFencePool::Import(const FenceTicket& ticket,
                                                Deadline deadline) {
  core_->Collect();
  ASSIGN_OR_RETURN(ImportedBlock block,
                   core_->pool().Import(BlockOf(ticket), deadline));
  if (block.address() % kFenceBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", ticket.Describe(), " is at no fence's place"));
  }
  const CUdeviceptr at = block.address();
  const std::uint64_t base = fence::WordsAt(at).base.load();
  if (base > fence::kLastBase) {
    return absl::DataLossError(absl::StrCat(
        "the ", ticket.Describe(), " counts from ", base,
        ", which no fence does: a process that has the pool wrote to it"));
  }
  core_->CountNew();
  return Fence(core_, at, base, std::move(block));
}

absl::Status ImportedFencePool::connection() const {
  return core_->pool().connection();
}

FencePoolStatistics ImportedFencePool::statistics() const {
  return {core_->fences(), core_->waiting(), 0};
}

}  // namespace vmm
