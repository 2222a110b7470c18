// Children that have another driver than the test that starts them.
#ifndef VMMSHARE_TESTS_SUPPORT_PEER_VERSION_H_
#define VMMSHARE_TESTS_SUPPORT_PEER_VERSION_H_

#include <cstdlib>
#include <map>
#include <string>

namespace vmm::testing {

// `env` for a child: with $VMMSHARE_TEST_PEER_VERSION the host-memory driver is
// of that version there.
inline std::map<std::string, std::string> WithPeerVersion(
    std::map<std::string, std::string> env) {
  if (const char* version = std::getenv("VMMSHARE_TEST_PEER_VERSION")) {
    env.emplace("VMMSHARE_HOST_VERSION", version);
  }
  return env;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_PEER_VERSION_H_
