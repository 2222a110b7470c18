#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "platform/base/check.h"
#include "tests/ipc/planted_handles.h"

namespace vmm::testing {
namespace {

constexpr uid_t kNobody = 65534;

platform::OsHandle Own(int fd) {
  platform::Check(fd >= 0, "cannot make a descriptor to plant");
  return platform::OsHandle::Adopt(fd);
}

}  // namespace

std::vector<Planted> PlantedObjects() {
  int sockets[2] = {-1, -1};
  platform::Check(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0,
      "socketpair() failed");
  ::close(sockets[1]);
  int pipes[2] = {-1, -1};
  platform::Check(::pipe2(pipes, O_CLOEXEC) == 0, "pipe2() failed");
  ::close(pipes[1]);
  std::vector<Planted> planted;
  planted.push_back(
      {"a character device", Own(::open("/dev/null", O_RDWR | O_CLOEXEC))});
  planted.push_back({"a pipe", Own(pipes[0])});
  planted.push_back({"a socket", Own(sockets[0])});
  planted.push_back(
      {"a directory", Own(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC))});
  planted.push_back(
      {"a file", Own(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))});
  // As a dma-buf is to fstat(): without a type.
  planted.push_back({"a kernel object, as eventfds and dma-bufs",
                     Own(::eventfd(0, EFD_CLOEXEC))});
  return planted;
}

std::vector<Planted> CarriedObjects() {
  std::vector<Planted> planted = PlantedObjects();
  planted.erase(planted.begin() + 2, planted.end());
  return planted;
}

platform::OsHandle PlantedMemory(std::uint64_t size, bool sealed) {
  const int fd = ::memfd_create("planted", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  platform::OsHandle handle = Own(fd);
  platform::Check(::ftruncate(fd, static_cast<off_t>(size)) == 0,
                  "ftruncate() failed");
  platform::Check(
      !sealed || ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
      "F_ADD_SEALS failed");
  return handle;
}

std::string WordsForUnsealed() { return "expected one sealed against both"; }
std::string WordsForSize(std::uint64_t size) {
  return "memfd of " + std::to_string(size) + " bytes";
}

platform::OsHandle ClosedHandle() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  platform::Check(fd >= 0 && ::close(fd) == 0, "cannot make a closed number");
  return platform::OsHandle::Adopt(fd);
}

bool MayBecomeAnotherUser() { return ::geteuid() == 0; }

void BecomeNobody() {
  platform::Check(::setgid(kNobody) == 0 && ::setuid(kNobody) == 0,
                  "cannot become nobody");
}

void OpenToEverybody(const std::string& directory) {
  platform::Check(::chmod(directory.c_str(), 0755) == 0, "chmod() failed");
}

}  // namespace vmm::testing
