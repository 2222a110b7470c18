#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/base/check.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {

const CUmemAllocationHandleType kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const CUmemAllocationHandleType kForeignFd = CU_MEM_HANDLE_TYPE_WIN32;

namespace {

using platform::Check;

constexpr int kTimeoutMs = 60'000;

bool WaitReadable(int socket) {
  pollfd wait{socket, POLLIN, 0};
  return poll(&wait, 1, kTimeoutMs) == 1;
}

}  // namespace

void* HandleAttributes() { return nullptr; }

CUresult ExportTo(const platform::DriverTable& cu, int* fd,
                  CUmemGenericAllocationHandle memory) {
  return cu.cuMemExportToShareableHandle(fd, memory, kFd, 0);
}

CUresult ExportPoolTo(const platform::DriverTable& cu, int* fd,
                      CUmemoryPool pool) {
  return cu.cuMemPoolExportToShareableHandle(fd, pool, kFd, 0);
}

bool CanFork() { return true; }
bool LibrariesMayEndFirst() { return true; }

void CloseDescriptor(int fd) { close(fd); }

int Inheritable(int fd) {
  const int copy = dup(fd);
  Check(copy >= 0, "dup() of a test's descriptor failed");
  return copy;
}

bool ClosesOnExec(int fd) { return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

std::vector<std::pair<std::string, int>> DescriptorsThatAreNoMemory() {
  int sockets[2] = {-1, -1};
  Check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0,
        "socketpair() failed");
  const int memory = memfd_create("plain", MFD_CLOEXEC);
  Check(ftruncate(memory, 2 << 20) == 0, "ftruncate() of a memfd failed");
  return {{"/dev/null", open("/dev/null", O_RDWR | O_CLOEXEC)},
          {"a directory", open("/dev", O_RDONLY | O_CLOEXEC)},
          {"a socket", sockets[0]},
          {"its peer", sockets[1]},
          {"a memfd", memory},
          {"no descriptor", -1},
          {"a number that is not open", 9999}};
}

std::vector<int> ImpostorsOfMemory(int exported) {
  const std::string path = "/proc/self/fd/" + std::to_string(exported);
  char target[256] = {};
  Check(readlink(path.c_str(), target, sizeof(target) - 1) > 0,
        "readlink() of an exported descriptor failed");
  // "/memfd:NAME (deleted)"
  std::string name = std::string(target).substr(std::strlen("/memfd:"));
  name.erase(std::min(name.find(' '), name.size()));
  const auto make = [](const std::string& as, off_t size, int seals) {
    const int fd = memfd_create(as.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    Check(fd >= 0 && ftruncate(fd, size) == 0 &&
              fcntl(fd, F_ADD_SEALS, seals) == 0,
          "a memfd could not be made");
    return fd;
  };
  constexpr off_t kSize = 2 << 20;
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  std::vector<int> impostors = {
      make(name, kSize, 0),
      make(name, kSize, F_SEAL_GROW | F_SEAL_SEAL),
      make(name, kSize, F_SEAL_SHRINK | F_SEAL_SEAL),
      make(name, kSize, kSealed | F_SEAL_WRITE),
      make(name, 0, kSealed),
      make(name, 4096, kSealed),
      make("x" + name, kSize, kSealed),
      make(name + "0", kSize, kSealed),
      make(name.substr(0, name.size() - 1), kSize, kSealed),
      open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  // None is reserved for it: only whoever touches it would see that. Kernels
  // without huge pages, or with larger ones, make none of this size.
  const int huge =
      memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (huge >= 0 && ftruncate(huge, kSize) == 0 &&
      fcntl(huge, F_ADD_SEALS, kSealed) == 0) {
    impostors.push_back(huge);
  } else if (huge >= 0) {
    close(huge);
  }
  return impostors;
}

std::vector<std::string> SharedFilesNamed(const std::string& part) {
  std::vector<std::string> found;
  DIR* dir = opendir("/dev/shm");
  Check(dir != nullptr, "cannot read /dev/shm");
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name.find(part) != std::string::npos) found.push_back(name);
  }
  closedir(dir);
  return found;
}

SocketPair MakeSocketPair() {
  int sockets[2] = {-1, -1};
  Check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0,
        "socketpair() failed");
  fcntl(sockets[0], F_SETFD, FD_CLOEXEC);
  return {sockets[0], sockets[1]};
}

bool SendDescriptor(int socket, int fd) {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

bool ReceiveDescriptor(int socket, int* fd) {
  if (!WaitReadable(socket)) return false;
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return false;
  std::memcpy(fd, CMSG_DATA(header), sizeof(*fd));
  return true;
}

bool SendBytes(int socket, const void* data, std::size_t size) {
  return send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool ReceiveBytes(int socket, void* data, std::size_t size) {
  return WaitReadable(socket) &&
         recv(socket, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

int RunForked(int (*child)()) {
  const pid_t pid = fork();
  Check(pid >= 0, "fork() failed");
  if (pid == 0) _exit(child());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    Check(errno == EINTR, "waitpid() failed");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace vmm::testing
