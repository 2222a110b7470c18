#include "vmm/job/internal/offer.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "fabric/diagnosis.h"
#include "fabric/driver_fabric.h"
#include "fabric/nvml.h"
#include "fabric/topology.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/job/internal/seen_topology.h"
#include "vmm/share/transfer.h"

namespace vmm::job {
namespace {

using fabric::Finding;
using fabric::JobCard;
using fabric::Refusal;

// Of one endpoint: every rank of a large host may come at once.
constexpr std::size_t kMaxSessions = 256;

// NVML as the options name it.
absl::StatusOr<fabric::Nvml> FindNvml(const Device& device,
                                      const JobOptions& options) {
  if (!options.nvml.empty()) return fabric::Nvml::LoadFrom(options.nvml);
  if (device.driver().is_host_memory()) {
    return absl::NotFoundError("no NVML was named for the host-memory driver");
  }
  return fabric::Nvml::LoadSystem();
}

std::shared_ptr<const fabric::Topology> TopologyOf(const Device& device,
                                                   const JobOptions& options) {
  const auto read = [&] {
    return fabric::ReadTopology(
        FindNvml(device, options), {device.uuid().bytes}, options.root,
        [&](std::size_t) {
          return fabric::FabricOfDriver(device.driver(), device.cuda_device());
        });
  };
  // What tests or programs name is asked each time.
  if (!options.nvml.empty() || !options.root.empty() ||
      device.driver().is_host_memory()) {
    return std::make_shared<const fabric::Topology>(read());
  }
  return SeenTopologies::OfProcess().Get(device.uuid().bytes, read);
}

absl::StatusOr<bool> FabricAttribute(const Device& device) {
  int value = 0;
  RETURN_IF_ERROR(device.driver().Error(
      device.driver()->cuDeviceGetAttribute(
          &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
          device.cuda_device()),
      "cuDeviceGetAttribute(fabric handles)"));
  return value != 0;
}

// Why this rank cannot offer its memory as `kind`, though the driver or the
// system was asked: `tried` says so.
Refusal WhyNotHere(const Device& device, HandleKind kind,
                   const absl::Status& tried, const fabric::Topology& topology,
                   const std::string& root) {
  if (kind == HandleKind::kFabric) {
    // Of IMEX as it is now: the rest may have been read long ago.
    std::optional<Finding> why = WhyNoFabric(topology, fabric::ReadImex(root),
                                             {FabricAttribute(device), tried});
    if (why.has_value()) return {tried.code(), *std::move(why)};
  }
  return Refuse(tried, "driver-refused",
                "`vmmshare doctor` on that host says more.");
}

// Has the card say who this rank is. Returns why it can offer nothing, if so.
Refusal Introduce(const absl::StatusOr<Device>& device, JobCard& card) {
  const absl::StatusOr<const platform::Machine*> machine =
      platform::ThisMachine();
  if (!machine.ok()) {
    return Refuse(machine.status(), "no-boot-id",
                  "Give the container its own /proc.");
  }
  card.host_name = (*machine)->host_name;
  card.boot_id = (*machine)->boot_id;
  if (!device.ok()) {
    return Refuse(device.status(), "no-device",
                  "`vmmshare doctor` on that host says what is missing.");
  }
  card.host_memory_driver = device->driver().is_host_memory();
  card.device = device->uuid().bytes;
  card.device_name = device->name();
  return {};
}

absl::StatusOr<Allocation> MakeMemory(const Device& device, std::uint64_t size,
                                      const SharePolicy& sharing) {
  ASSIGN_OR_RETURN(
      Allocation memory,
      Allocation::Create(device, {.size = size, .sharing = sharing}));
  if (memory.disclosed().size == 0) return memory;
  return absl::UnimplementedError(
      "memory over legacy IPC has an address of its own, and a job's does "
      "not");
}

}  // namespace

Refusal Refuse(const absl::Status& status, absl::string_view id,
               absl::string_view remedy) {
  return {status.code(), Finding{std::string(id), std::string(status.message()),
                                 std::string(remedy)}};
}

SharePolicy JobSharing() {
  return SharePolicy::AnyOf(
      {SharePolicy::Native().kinds().front(), HandleKind::kFabric});
}

std::vector<HandleKind> JobKinds(const SharePolicy& sharing) {
  std::vector<HandleKind> kinds;
  for (HandleKind kind : sharing.kinds()) {
    if (IsVmm(kind) && !absl::c_linear_search(kinds, kind)) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

Offer Offer::Make(const absl::StatusOr<Device>& device, std::uint64_t size,
                  const SharePolicy& sharing, const fabric::Exchange& exchange,
                  const JobOptions& options) {
  Offer offer;
  JobCard& card = offer.card_;
  card.rank = static_cast<std::uint32_t>(exchange.rank());
  card.ranks = static_cast<std::uint32_t>(exchange.size());
  card.trouble = Introduce(device, card);
  if (!card.trouble.empty()) return offer;
  const std::shared_ptr<const fabric::Topology> topology =
      TopologyOf(*device, options);
  if (const auto& info = topology->gpus.front().fabric;
      info.ok() && info->joined()) {
    card.domain = JobCard::Domain{info->cluster, info->clique};
  }
  absl::StatusOr<Allocation> memory = MakeMemory(*device, size, sharing);
  if (!memory.ok()) {
    card.trouble = Refuse(memory.status(), "no-memory",
                          "`vmmshare doctor` on that host says what can be "
                          "shared there; nvidia-smi and `vmmshare keep --list` "
                          "who holds its memory.");
    return offer;
  }
  card.requested_size = memory->requested_size();
  card.mapped_size = memory->size();
  offer.memory_ = *std::move(memory);
  for (HandleKind kind : JobKinds(sharing)) {
    card.offers.push_back(offer.As(kind, *device, *topology, options));
  }
  return offer;
}

fabric::JobOffer Offer::As(HandleKind kind, const Device& device,
                           const fabric::Topology& topology,
                           const JobOptions& options) {
  absl::StatusOr<std::string> ticket = absl::InternalError("");
  if (memory_->kinds().Has(kind)) {
    if (kind != HandleKind::kFabric) {
      absl::StatusOr<std::unique_ptr<Endpoint>> started =
          Endpoint::Start({.listener = options.listener,
                           .peers = options.peers,
                           .max_sessions = kMaxSessions});
      if (!started.ok()) {
        return {CudaKind(kind), "",
                Refuse(started.status(), "no-socket",
                       "Give the rank a folder for its socket: "
                       "docs/containers.md.")};
      }
      endpoint_ = *std::move(started);
    }
    ticket = Publish(kind);
  }
  for (const PassedOver& passed : memory_->passed_over()) {
    if (passed.kind == kind) ticket = passed.reason;
  }
  if (ticket.ok()) return {CudaKind(kind), *std::move(ticket), {}};
  return {CudaKind(kind), "",
          WhyNotHere(device, kind, ticket.status(), topology, options.root)};
}

absl::StatusOr<std::string> Offer::Publish(HandleKind kind) {
  if (kind == HandleKind::kFabric) {
    ASSIGN_OR_RETURN(const std::vector<std::uint8_t> bytes,
                     ExportFabricTicket(memory_->shareable()));
    return std::string(bytes.begin(), bytes.end());
  }
  ASSIGN_OR_RETURN(publication_, endpoint_->Publish(memory_->shareable()));
  return publication_->ticket();
}

}  // namespace vmm::job
