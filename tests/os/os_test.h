// What the tests of the operating-system room share.
#ifndef VMMSHARE_TESTS_OS_OS_TEST_H_
#define VMMSHARE_TESTS_OS_OS_TEST_H_

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/open_handles.h"

namespace vmm::platform {

// Every test of this room leaves the descriptors as it found them.
class OsTest : public ::testing::Test {
 private:
  testing::ExpectNoNewHandles no_new_handles_;
};

// A deadline no passing test reaches.
inline absl::Time Late() { return absl::Now() + absl::Seconds(30); }

inline absl::Time In(int milliseconds) {
  return absl::Now() + absl::Milliseconds(milliseconds);
}

// Waits for what another thread, or process, is about to do.
inline bool ComesTrue(const std::function<bool()>& holds) {
  const absl::Time deadline = Late();
  while (!holds()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// The value, or the end of the program with the error.
template <typename T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) Die(result.status().ToString());
  return *std::move(result);
}

inline void Must(const absl::Status& status) {
  if (!status.ok()) Die(status.ToString());
}

// A fresh directory of mode 0700, removed with what is in it.
class TempDirectory {
 public:
  explicit TempDirectory(const std::string& parent = "/tmp")
      : path_(parent + "/vmmshare-test-XXXXXX") {
    Check(::mkdtemp(path_.data()) != nullptr, "mkdtemp() failed");
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline int RawFd(const OsHandle& handle) {
  return static_cast<int>(handle.get());
}

// Memory with `text` in it, as a stand-in for exported GPU memory.
inline OsHandle MemoryWith(const std::string& text) {
  OsHandle memory = OsHandle::Adopt(::memfd_create("test", MFD_CLOEXEC));
  Check(memory.has_value(), "memfd_create() failed");
  Check(::pwrite(RawFd(memory), text.data(), text.size(), 0) ==
            static_cast<ssize_t>(text.size()),
        "pwrite() failed");
  return memory;
}

inline std::string TextIn(const OsHandle& memory) {
  char text[256];
  const ssize_t size = ::pread(RawFd(memory), text, sizeof(text), 0);
  return size < 0 ? "unreadable" : std::string(text, static_cast<size_t>(size));
}

inline std::vector<std::uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

inline std::string Text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

struct Pipe {
  OsHandle read_end;
  OsHandle write_end;
};

inline Pipe MakePipe() {
  int fds[2];
  Check(::pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0, "pipe2() failed");
  return {OsHandle::Adopt(fds[0]), OsHandle::Adopt(fds[1])};
}

// Whether every descriptor of the pipe's write end has been closed.
inline bool WriteEndIsGone(const Pipe& pipe) {
  char byte;
  return ::read(RawFd(pipe.read_end), &byte, 1) == 0;
}

using testing::DescriptorLimit;

// A user that is neither root nor anybody else on the machine.
inline constexpr uid_t kStranger = 54321;

// REQUIRES: root.
inline void BecomeStranger() {
  Check(::setgroups(0, nullptr) == 0 && ::setgid(kStranger) == 0 &&
            ::setuid(kStranger) == 0,
        "setuid() failed");
}

}  // namespace vmm::platform

#endif  // VMMSHARE_TESTS_OS_OS_TEST_H_
