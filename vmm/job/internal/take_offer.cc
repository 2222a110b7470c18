// The other end of an offer: its memory is imported, or why that failed is told.
#include <optional>

#include "absl/strings/str_cat.h"
#include "vmm/job/internal/offer.h"
#include "vmm/share/transfer.h"

namespace vmm::job {

using fabric::JobCard;
using fabric::JobOffer;
using fabric::OfRank;
using fabric::Refusal;

absl::StatusOr<ImportedAllocation> ImportFrom(
    const Device& device, const JobCard& owner, HandleKind kind,
    const ImportOptions& how, const JobOptions& options, Deadline deadline) {
  const std::string& ticket = owner.Find(CudaKind(kind))->ticket;
  if (kind == HandleKind::kFabric) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(ticket.data());
    return ImportFabricTicket(device.driver(),
                              absl::MakeConstSpan(bytes, ticket.size()), how);
  }
  return OpenTicket(device.driver(), ticket, how, deadline, options.peers);
}

Refusal Explain(const absl::Status& status, const JobCard& importer,
                const JobCard& owner, HandleKind kind, bool had_time) {
  const auto refuse = [&](absl::string_view id, absl::string_view remedy) {
    return Refuse(status, id, remedy);
  };
  if (absl::IsDataLoss(status)) {
    return refuse("wrong-data",
                  "The mapping is not the peer's memory, or it is not "
                  "coherent: report the driver's version.");
  }
  if (kind == HandleKind::kFabric) {
    const JobOffer* own = importer.Find(CudaKind(kind));
    if (own != nullptr && !own->usable()) return OfRank(importer, own->refusal);
    if (importer.domain.has_value() && owner.domain.has_value() &&
        importer.domain != owner.domain) {
      return refuse("two-domains",
                    absl::StrCat("The two GPUs have joined different NVLink "
                                 "domains (clique ",
                                 importer.domain->clique, " of ",
                                 fabric::UuidText(importer.domain->cluster),
                                 ", clique ", owner.domain->clique, " of ",
                                 fabric::UuidText(owner.domain->cluster),
                                 "): put the job's ranks into one clique."));
    }
    if (platform::ResultOf(status) == CUDA_ERROR_NOT_PERMITTED) {
      return refuse("other-channel",
                    "Pass the IMEX channel of the same number into all ranks.");
    }
    return refuse("import-refused",
                  "`nvidia-imex-ctl -N`: both nodes ready and connected.");
  }
  // The codes below are the socket's and the peer's; the driver's own results
  // have the same, and another cause.
  const std::optional<CUresult> result = platform::ResultOf(status);
  if (result.has_value() && result != CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) {
    return refuse("import-refused",
                  absl::StrCat("docs/errors.md has the driver's results one by "
                               "one; this one is ",
                               static_cast<int>(*result), "."));
  }
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return refuse("owner-unreachable",
                    "If that rank lives: mount one folder for sockets into "
                    "both containers (NVIDIA_DRA_LOCAL_IPC_DIR).");
    case absl::StatusCode::kPermissionDenied:
      return refuse("other-user",
                    "Run all ranks as one user or, from C++, name the users in "
                    "JobOptions::peers.");
    case absl::StatusCode::kDeadlineExceeded:
      if (!had_time) {
        return refuse("no-time",
                      "The time was over before that rank was asked: give the "
                      "call more of it.");
      }
      [[fallthrough]];
    case absl::StatusCode::kUnavailable:
      return refuse("owner-silent",
                    "That rank has died or hangs: look at its own output.");
    case absl::StatusCode::kFailedPrecondition:
      return refuse("no-peer-access",
                    "`nvidia-smi topo -p2p r` shows who reaches whom.");
    default:
      return refuse("import-refused",
                    "docs/errors.md has the driver's results one by one.");
  }
}

}  // namespace vmm::job
