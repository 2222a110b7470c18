// What a keeper keeps, as JSON: see keep.h.
#include "absl/time/time.h"
#include "vmm/tool/json.h"
#include "vmm/tool/keep.h"

namespace vmm::tool {
namespace {

Json Of(const KeptMemory& kept) {
  Json one = Json::object();
  one["name"] = kept.name;
  one["state"] = NameOf(kept.state);
  one["bytes"] = kept.size;
  one["process"] = kept.pid;
  one["attached"] = kept.attached;
  one["user"] = kept.user.text();
  one["since"] = absl::ToDoubleSeconds(kept.since - absl::UnixEpoch());
  if (kept.state == KeptState::kLocked) {
    one["holder"] = kept.holder_pid;
    one["holder_user"] = kept.holder.text();
  }
  if (kept.state == KeptState::kReserved) return one;
  one["allocated_bytes"] = kept.allocated_size;
  one["chunks"] = kept.chunks;
  one["kind"] = NameOf(kept.kind);
  if (kept.host_numa_node.has_value()) {
    one["host_node"] = *kept.host_numa_node;
  } else {
    one["device"] = kept.device.ToString();
  }
  one["survives_restart"] = kept.survives_restart;
  one["outlives_creator"] = kept.outlives_creator();
  return one;
}

}  // namespace

std::string AsJson(const KeeperListing& listing) {
  Json list = Json::array();
  for (const KeptMemory& kept : listing.memory) list.push_back(Of(kept));
  return JsonText(list);
}

}  // namespace vmm::tool
