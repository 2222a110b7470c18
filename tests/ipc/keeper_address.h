// Where keepers of tests listen.
#ifndef VMMSHARE_TESTS_IPC_KEEPER_ADDRESS_H_
#define VMMSHARE_TESTS_IPC_KEEPER_ADDRESS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_address.h"
#include "platform/os/process.h"
#include "tests/support/must.h"

namespace vmm::testing {

// Where a keeper of this process listens: in `directory`, unless addresses are
// none of the file system's.
inline std::string KeeperAddressIn(const std::string& directory) {
  if (platform::kNativeHandleIsPosixFd) return directory + "/keeper";
  return Must(platform::DefaultAddressOf(
      absl::StrCat("test-keeper-", platform::CurrentProcessId())));
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_KEEPER_ADDRESS_H_
