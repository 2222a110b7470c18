// Descriptors that are no GPU memory, for tests of what refuses them; and
// what only an operating system can do to a process.
#ifndef VMMSHARE_TESTS_IPC_PLANTED_HANDLES_H_
#define VMMSHARE_TESTS_IPC_PLANTED_HANDLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "platform/os/os_handle.h"

namespace vmm::testing {

struct Planted {
  std::string name;  // In the words that errors use: "a socket".
  platform::OsHandle handle;
};

// One of each kind of object that can be sent and is not memory of any driver:
// /dev/null, a socket, a pipe, a directory, a file.
std::vector<Planted> PlantedObjects();
// Those of them that a channel carries: not the directory and the file on Linux,
// whose closing could block.
std::vector<Planted> CarriedObjects();

// Memory of `size` bytes that the host-memory driver did not make. `sealed`:
// against shrinking and growing.
platform::OsHandle PlantedMemory(std::uint64_t size, bool sealed);

// What errors say of that memory: of some that is not sealed, and of some with
// `size` bytes.
std::string WordsForUnsealed();
std::string WordsForSize(std::uint64_t size);

// A descriptor number that is not open. Its owner must Relinquish() it.
platform::OsHandle ClosedHandle();

// Whether this process may become another user.
bool MayBecomeAnotherUser();
// Becomes the user 65534 (nobody), for good.
void BecomeNobody();
// Lets everybody look into `directory`.
void OpenToEverybody(const std::string& directory);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_PLANTED_HANDLES_H_
