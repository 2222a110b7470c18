// What of the IMEX channels keeps this process from fabric handles; a part of
// diagnosis.h.
#ifndef VMMSHARE_FABRIC_CHANNEL_DIAGNOSIS_H_
#define VMMSHARE_FABRIC_CHANNEL_DIAGNOSIS_H_

#include <optional>
#include <string>

#include "fabric/diagnosis.h"
#include "fabric/topology.h"

namespace vmm::fabric {

// "/dev/... (mode 0600, owner 0)".
std::string Facts(const platform::ImexChannel& channel);

// Nothing when this process has a channel that can serve.
std::optional<Finding> ChannelFinding(const ImexTopology& imex);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_CHANNEL_DIAGNOSIS_H_
