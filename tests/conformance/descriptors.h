// Descriptors for the tests to play with, and to hand to child processes. On
// Windows they are handles, whose values fit an int.
#ifndef VMMSHARE_TESTS_CONFORMANCE_DESCRIPTORS_H_
#define VMMSHARE_TESTS_CONFORMANCE_DESCRIPTORS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vmm::testing {

void CloseDescriptor(int fd);
// A duplicate of `fd` that child processes inherit, as an argument for them.
int Inheritable(int fd);
bool ClosesOnExec(int fd);

// What an importer might be handed by mistake or malice, with a name for
// messages: /dev/null, a directory, a socket, a memfd, a number not open.
std::vector<std::pair<std::string, int>> DescriptorsThatAreNoMemory();

// Descriptors that resemble `exported`, memory of the host-memory driver, but
// must not be taken for it: not sealed, of another size, read-only, by another
// name, of huge pages. The caller closes them.
std::vector<int> ImpostorsOfMemory(int exported);

// The names of shared memory files that contain `part`.
std::vector<std::string> SharedFilesNamed(const std::string& part);

// A pair of connected sockets; the second is inherited by child processes.
struct SocketPair {
  int mine = -1;
  int childs = -1;
};
SocketPair MakeSocketPair();
// Both answer false when the other side is gone or 60 seconds have passed.
bool SendDescriptor(int socket, int fd);
bool ReceiveDescriptor(int socket, int* fd);
// The same for bytes of a known number.
bool SendBytes(int socket, const void* data, std::size_t size);
bool ReceiveBytes(int socket, void* data, std::size_t size);

// Whether RunForked() can be called here.
bool CanFork();
// Whether a library's end at exit can come before a program's own last
// destructors. On Windows it never does.
bool LibrariesMayEndFirst();
// Runs `child` in a forked process, without exec, and answers its exit status,
// or 128 + the signal that ended it.
int RunForked(int (*child)());

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_DESCRIPTORS_H_
