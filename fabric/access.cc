#include "fabric/access.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/os/imex.h"

namespace vmm::fabric {
namespace {

std::string Channels(const std::string& root) {
  const absl::StatusOr<std::vector<platform::ImexChannel>> channels =
      platform::ImexChannels(root);
  if (!channels.ok()) {
    return absl::StrCat("Whether there is an IMEX channel node (",
                        platform::ImexChannelPattern(),
                        ") could not be seen: ", channels.status().message());
  }
  if (channels->empty()) {
    return absl::StrCat("This process finds no IMEX channel node (",
                        platform::ImexChannelPattern(), ")");
  }
  return absl::StrCat(
      "IMEX channel nodes: ",
      absl::StrJoin(*channels, ", ",
                    [](std::string* out, const platform::ImexChannel& c) {
                      absl::StrAppend(out, c.path,
                                      c.usable ? "" : " (not accessible)");
                    }));
}

}  // namespace

std::string AdviceFor(CUresult result) { return AdviceFor(result, ""); }

std::string AdviceFor(CUresult result, const std::string& root) {
  switch (result) {
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::StrCat(
          Channels(root),
          ". Fabric handles need a multi-node NVLink machine, a running "
          "nvidia-imex daemon, and an IMEX channel node that this process may "
          "open (in a container: one that was passed in). The device attribute "
          "says nothing of this. `vmmshare doctor` says which of these is "
          "missing.");
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
      return "This device or driver has no fabric handles: they came with "
             "CUDA 12.3 and multi-node NVLink.";
    default:
      return "";
  }
}

std::string ImportAdviceFor(CUresult result) {
  return ImportAdviceFor(result, "");
}

std::string ImportAdviceFor(CUresult result, const std::string& root) {
  switch (result) {
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::StrCat(Channels(root),
                          ". The importer must be able to open the IMEX "
                          "channel that the owner uses: the same number on "
                          "each node, in a container too. `vmmshare doctor` "
                          "on both nodes says what is there.");
    // Seen between domains and while the daemons had lost each other; the
    // driver tells no more.
    case CUDA_ERROR_INVALID_HANDLE:
      return "The handle leads nowhere from here. The owner freed the memory "
             "or ended, or is in another NVLink domain (cluster and clique: "
             "`vmmshare doctor` on both nodes), or the nvidia-imex daemons do "
             "not reach each other (nvidia-imex-ctl -N).";
    // Reported of processes of one node that see different GPUs.
    case CUDA_ERROR_INVALID_DEVICE:
      return "Within a node the importer must see the owner's GPU "
             "(CUDA_VISIBLE_DEVICES, the devices of a container). Share "
             "within the node by the system's own handles.";
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_INVALID_VALUE:
      return "No device of this process takes part in a multi-node NVLink "
             "fabric, or the driver has no fabric handles: `vmmshare doctor` "
             "says which.";
    default:
      return "";
  }
}

}  // namespace vmm::fabric
