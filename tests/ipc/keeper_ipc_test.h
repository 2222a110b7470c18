// What the tests of the keeper have in common.
#ifndef VMMSHARE_TESTS_IPC_KEEPER_IPC_TEST_H_
#define VMMSHARE_TESTS_IPC_KEEPER_IPC_TEST_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/ipc/keeper_address.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/keeper/keeper.h"

namespace vmm::testing {

// Says where its keeper listens, once for each test.
class KeeperTest : public IpcTest {
 protected:
  KeeperTest() : keeper_address_(KeeperAddressIn(directory())) {}

  // A keeper in this process, without a service manager. It never looks at the
  // driver that is loaded here for the clients.
  std::unique_ptr<keeper::Server> Start(keeper::ServerOptions options = {}) {
    options.address = keeper_address_;
    return Must(keeper::Server::Start(
        std::move(options), absl::NotFoundError("none in this test"), {}));
  }
  const std::string& keeper_address() const { return keeper_address_; }

  static KeeperClient ClientOf(const std::string& address) {
    return Must(KeeperClient::Connect({.address = address}, Late()));
  }
  KeeperClient Client() const { return ClientOf(keeper_address_); }

  static std::optional<KeptMemory> Listed(KeeperClient& client,
                                          const std::string& name) {
    for (KeptMemory& memory : Must(client.List(Late())).memory) {
      if (memory.name == name) return std::move(memory);
    }
    return std::nullopt;
  }

 private:
  const std::string keeper_address_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_KEEPER_IPC_TEST_H_
