#include "tests/hostile/blocking_mount.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "platform/os/descriptor_posix.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kFile = 2;  // The root is 1.

bool EnterNamespaces() {
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream users("/proc/self/uid_map");
  users << absl::StrCat(user, " ", user, " 1") << std::flush;
  std::ofstream groups("/proc/self/gid_map");
  groups << absl::StrCat(group, " ", group, " 1") << std::flush;
  return users.good() && groups.good();
}

template <typename Body>
void Answer(int fuse, const fuse_in_header& to, int error, const Body& body,
            std::size_t size = sizeof(Body)) {
  std::array<char, sizeof(fuse_out_header) + sizeof(Body)> out{};
  const std::size_t length = error == 0 ? size : 0;
  const fuse_out_header header{
      static_cast<std::uint32_t>(sizeof(fuse_out_header) + length), -error,
      to.unique};
  std::memcpy(out.data(), &header, sizeof(header));
  std::memcpy(out.data() + sizeof(header), &body, length);
  [[maybe_unused]] const ssize_t written =
      ::write(fuse, out.data(), header.len);
}

fuse_attr Attributes(std::uint64_t node) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.mode = node == kFile ? S_IFREG | 0600 : S_IFDIR | 0700;
  attributes.nlink = 1;
  attributes.uid = ::getuid();
  attributes.gid = ::getgid();
  attributes.size = 4 << 20;
  return attributes;
}

// Answers until the file is open, and nothing after that.
[[noreturn]] void Serve(int fuse) {
  bool answers = true;
  std::array<char, 1 << 17> in;
  for (;;) {
    const ssize_t size = ::read(fuse, in.data(), in.size());
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) ::_exit(0);
    if (!answers) continue;
    fuse_in_header request;
    std::memcpy(&request, in.data(), sizeof(request));
    switch (request.opcode) {
      case FUSE_INIT: {
        fuse_init_out init{};
        init.major = FUSE_KERNEL_VERSION;
        init.minor = FUSE_KERNEL_MINOR_VERSION;
        init.max_write = 4096;
        Answer(fuse, request, 0, init);
        break;
      }
      case FUSE_LOOKUP: {
        fuse_entry_out entry{};
        entry.nodeid = kFile;
        entry.attr = Attributes(kFile);  // Valid for no time: asked each time.
        Answer(fuse, request, 0, entry);
        break;
      }
      case FUSE_GETATTR: {
        fuse_attr_out attributes{};
        attributes.attr = Attributes(request.nodeid);
        Answer(fuse, request, 0, attributes);
        break;
      }
      case FUSE_OPEN:
        Answer(fuse, request, 0, fuse_open_out{});
        answers = false;
        break;
      default:
        Answer(fuse, request, ENOSYS, fuse_open_out{});
    }
  }
}

}  // namespace

BlockingMount::BlockingMount(const std::string& directory) {
  if (!EnterNamespaces()) return;
  const int fuse = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fuse < 0) return;
  const std::string options =
      absl::StrCat("fd=", fuse, ",rootmode=40000,user_id=", ::getuid(),
                   ",group_id=", ::getgid());
  if (::mount("vmmshare-test", directory.c_str(), "fuse", 0, options.c_str()) ==
      0) {
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Serve(fuse);
    }
  }
  ::close(fuse);
  if (server_ < 0) return;
  const int file =
      ::open(absl::StrCat(directory, "/file").c_str(), O_RDWR | O_CLOEXEC);
  if (file >= 0) file_ = platform::AdoptDescriptor(file);
}

BlockingMount::~BlockingMount() {
  if (server_ < 0) return;
  ::kill(server_, SIGKILL);
  ::waitpid(server_, nullptr, 0);
}

}  // namespace vmm::testing
