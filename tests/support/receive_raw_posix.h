// Receives sockets, which channels do not.
#ifndef VMMSHARE_TESTS_SUPPORT_RECEIVE_RAW_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_RECEIVE_RAW_POSIX_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_handle.h"

namespace vmm::testing {

// Waits for the next message over `channel`, whatever it is, and returns the
// handles that came with it.
inline std::vector<platform::OsHandle> ReceiveRaw(
    const platform::Channel& channel) {
  constexpr int kScmPidfd = 4;  // SCM_PIDFD, which older headers lack.
  std::vector<char> bytes(platform::kMaxPayload + 256);
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[512];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  platform::Check(::recvmsg(static_cast<int>(channel.handle().get()), &message,
                            MSG_CMSG_CLOEXEC) > 0,
                  "recvmsg() failed");
  std::vector<platform::OsHandle> handles;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr;
       one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level != SOL_SOCKET ||
        (one->cmsg_type != SCM_RIGHTS && one->cmsg_type != kScmPidfd)) {
      continue;
    }
    const std::size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof(fd));
      platform::OsHandle owned = platform::OsHandle::Adopt(fd);
      if (one->cmsg_type == SCM_RIGHTS) handles.push_back(std::move(owned));
    }
  }
  return handles;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_RECEIVE_RAW_POSIX_H_
