// Nodes of an NVLink fabric, for the host-memory driver: several on this
// machine, each a network namespace with a host name, a boot id and an IMEX of
// its own. Not on Windows, which has no IMEX.
//
//   const ImexRoot imex;   // Each node has one.
//   Child node = Child::Start("node", {"node1"}, imex.Environment());
//
//   int Node(const std::vector<std::string>& args) {
//     Must(EnterNode(args[0]));   // First of all.
//     ...
#ifndef VMMSHARE_TESTS_SUPPORT_NODES_H_
#define VMMSHARE_TESTS_SUPPORT_NODES_H_

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/support/child.h"

namespace vmm::testing {

inline constexpr char kCluster[] = "f0613ff9-b933-c38b-3a87-83fbe59ca8a9";
inline constexpr char kOtherCluster[] = "0badcafe-0000-4000-8000-000000000001";

// Why this machine gives no nodes: a container that forbids namespaces. Empty
// where it does. Tried in a child process.
std::string WhyNoNodes();

// Makes this process the node `name`. REQUIRES: it has one thread, is one of a
// node's ImexRoot::Environment(), and has not loaded the driver.
absl::Status EnterNode(const std::string& name);

// From now on this process may not open what the permission bits forbid, even
// if it is root's.
void ObeyPermissionBits();

// What the driver and `vmmshare doctor --root` find of a node's IMEX: a
// registered class, channel 0, and a daemon that is a process of its own. The
// channels are terminals, the only character devices that any user may make.
class ImexRoot {
 public:
  ImexRoot();
  ~ImexRoot();
  ImexRoot(const ImexRoot&) = delete;
  ImexRoot& operator=(const ImexRoot&) = delete;

  const std::string& path() const { return path_; }
  // For a child on this node, with all its devices in that cluster and clique.
  std::map<std::string, std::string> Environment(
      absl::string_view cluster = kCluster, int clique = 1) const;

  void MakeChannel(int number, int mode = 0600);
  void RemoveChannel(int number);
  void StartDaemon();
  // Kills it (SIGKILL) and waits until it is gone.
  void KillDaemon();

 private:
  std::string path_;
  std::map<int, int> terminals_;  // By channel: what keeps it open.
  std::optional<Child> daemon_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_NODES_H_
