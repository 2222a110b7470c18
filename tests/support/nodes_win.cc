#include "platform/check.h"
#include "tests/support/nodes.h"

namespace vmm::testing {
namespace {

constexpr char kNone[] = "Windows has no IMEX and no network namespaces";

}  // namespace

std::string WhyNoNodes() { return kNone; }

absl::Status EnterNode(const std::string&) {
  return absl::UnimplementedError(kNone);
}

void ObeyPermissionBits() {}

ImexRoot::ImexRoot() { platform::Die(kNone); }
ImexRoot::~ImexRoot() = default;
std::map<std::string, std::string> ImexRoot::Environment(absl::string_view,
                                                         int) const {
  return {};
}
void ImexRoot::MakeChannel(int, int) {}
void ImexRoot::RemoveChannel(int) {}
void ImexRoot::StartDaemon() {}
void ImexRoot::KillDaemon() {}

}  // namespace vmm::testing
