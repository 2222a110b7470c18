#include "fabric/channel_diagnosis.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "platform/os/process.h"

namespace vmm::fabric {

using platform::ImexChannel;

namespace {

std::string MakeNode(const std::string& major) {
  return absl::StrCat(
      "As root: mkdir -p /dev/nvidia-caps-imex-channels; mknod "
      "/dev/nvidia-caps-imex-channels/channel0 c ",
      major,
      " 0. Or load the nvidia module with NVreg_CreateImexChannel0=1, which "
      "makes it at each boot. In a container: pass the host's node in, with "
      "--device or NVIDIA_IMEX_CHANNELS=0.");
}

// Why none of the nodes that there are serves; nothing when one does.
std::optional<Finding> NodeFinding(const ImexTopology& imex,
                                   const std::string& make_node) {
  for (const ImexChannel& channel : *imex.channels) {
    if (!channel.usable) continue;
    if (!imex.major.ok() || channel.major == **imex.major) return std::nullopt;
  }
  const ImexChannel& first = imex.channels->front();
  const std::string all = absl::StrJoin(
      *imex.channels, ", ", [](std::string* out, const ImexChannel& channel) {
        absl::StrAppend(out, Facts(channel));
      });
  if (std::none_of(imex.channels->begin(), imex.channels->end(),
                   [](const ImexChannel& c) { return c.is_device; })) {
    return Finding{"channel-not-a-device",
                   absl::StrCat("what stands at the IMEX channel's place is no "
                                "character device: ",
                                all),
                   absl::StrCat("Remove it (container runtimes leave a folder "
                                "where the node to pass in does not exist). ",
                                make_node)};
  }
  for (const ImexChannel& channel : *imex.channels) {
    if (!channel.usable) continue;
    return Finding{
        "channel-stale",
        absl::StrCat("the IMEX channel node ", channel.path, " has major ",
                     "number ", channel.major, ", and the loaded driver's is ",
                     **imex.major, ": it was made before a reboot"),
        absl::StrCat("Remove it and make it anew. ", make_node)};
  }
  return Finding{
      "channel-denied",
      absl::StrCat("this process, of user ", platform::CurrentUser().text(),
                   ", may not open the IMEX channel: ", all, "; ",
                   first.reason.message()),
      absl::StrCat("Give this user the node: chown or setfacl -m u:USER:rw ",
                   first.path,
                   ", as root. In a container also allow the device "
                   "(--device, NVIDIA_IMEX_CHANNELS).")};
}

}  // namespace

std::string Facts(const ImexChannel& channel) {
  return absl::StrFormat("%s (mode %04o, owner %s)", channel.path, channel.mode,
                         channel.owner.text());
}

std::optional<Finding> ChannelFinding(const ImexTopology& imex) {
  if (absl::IsUnimplemented(imex.major.status())) {
    return Finding{"no-imex",
                   absl::StrCat("fabric handles need IMEX, which this "
                                "operating system has not: ",
                                imex.major.status().message()),
                   "Share within the host, by the system's own handles; "
                   "fabric handles are for Linux."};
  }
  if (!imex.channels.ok()) {
    return Finding{"channels-unreadable",
                   absl::StrCat("the IMEX channel nodes cannot be listed: ",
                                imex.channels.status().message()),
                   "Make /dev/nvidia-caps-imex-channels readable: chmod 755, "
                   "as root."};
  }
  if (imex.major.ok() && !imex.major->has_value()) {
    return Finding{"no-imex-class",
                   "the loaded driver offers no IMEX channels: /proc/devices "
                   "has no nvidia-caps-imex-channels",
                   "Install a data center driver with IMEX (R570 or newer for "
                   "GB200) and its open kernel module, and load it."};
  }
  const std::string make_node =
      MakeNode(imex.major.ok() ? absl::StrCat(**imex.major) : "MAJOR");
  if (imex.channels->empty()) {
    return Finding{
        "no-channel",
        absl::StrCat("no IMEX channel node: ", platform::ImexChannelPattern(),
                     " does not exist here"),
        make_node};
  }
  return NodeFinding(imex, make_node);
}

}  // namespace vmm::fabric
