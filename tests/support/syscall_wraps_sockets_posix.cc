// The functions on sockets and descriptors, and for waiting, that the linker
// puts in place of the system's: ld --wrap=NAME sends calls of NAME to
// __wrap_NAME, and calls of __real_NAME to NAME.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/blocking_file_posix.h"
#include "tests/support/syscall_table_posix.h"

// The linker's names; they cannot be others.
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

extern "C" {

// So that --undefined can pull this file out of its archive.
extern const int vmmshare_socket_wraps_linked;
const int vmmshare_socket_wraps_linked = 1;

int __real_socket(int domain, int type, int protocol);
int __real_socketpair(int domain, int type, int protocol, int* pair);
int __real_bind(int fd, const sockaddr* address, socklen_t size);
int __real_listen(int fd, int backlog);
int __real_accept(int fd, sockaddr* address, socklen_t* size);
int __real_accept4(int fd, sockaddr* address, socklen_t* size, int flags);
int __real_connect(int fd, const sockaddr* address, socklen_t size);
int __real_shutdown(int fd, int how);
ssize_t __real_send(int fd, const void* data, size_t size, int flags);
ssize_t __real_sendto(int fd, const void* data, size_t size, int flags,
                      const sockaddr* to, socklen_t to_size);
ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __real_recv(int fd, void* data, size_t size, int flags);
ssize_t __real_recvfrom(int fd, void* data, size_t size, int flags,
                        sockaddr* from, socklen_t* from_size);
ssize_t __real_recvmsg(int fd, msghdr* message, int flags);
int __real_getsockopt(int fd, int level, int option, void* value,
                      socklen_t* size);
int __real_setsockopt(int fd, int level, int option, const void* value,
                      socklen_t size);
int __real_getsockname(int fd, sockaddr* address, socklen_t* size);
int __real_getpeername(int fd, sockaddr* address, socklen_t* size);
int __real_poll(pollfd* fds, nfds_t count, int timeout);
int __real_ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
                 const sigset_t* mask);
int __real_epoll_create1(int flags);
int __real_epoll_ctl(int epoll, int operation, int fd, epoll_event* event);
int __real_epoll_wait(int epoll, epoll_event* events, int count, int timeout);
int __real_nanosleep(const timespec* time, timespec* left);
int __real_close(int fd);
int __real_dup(int fd);
int __real_dup2(int fd, int to);
int __real_dup3(int fd, int to, int flags);
int __real_pipe(int* ends);
int __real_pipe2(int* ends, int flags);
int __real_eventfd(unsigned value, int flags);
int __real_eventfd_read(int fd, eventfd_t* value);
int __real_eventfd_write(int fd, eventfd_t value);
int __real_memfd_create(const char* name, unsigned flags);
ssize_t __real_read(int fd, void* data, size_t size);
ssize_t __real_pread(int fd, void* data, size_t size, off_t offset);
ssize_t __real_write(int fd, const void* data, size_t size);
ssize_t __real_pwrite(int fd, const void* data, size_t size, off_t offset);

}  // extern "C"

using vmm::testing::internal::Intercept;
using vmm::testing::internal::look_at_unread;
using vmm::testing::internal::RowOf;

extern "C" {

int __wrap_socket(int domain, int type, int protocol) {
  return Intercept(RowOf("socket"), -1,
                   [&] { return __real_socket(domain, type, protocol); });
}

int __wrap_socketpair(int domain, int type, int protocol, int* pair) {
  return Intercept(RowOf("socketpair"), -1, [&] {
    return __real_socketpair(domain, type, protocol, pair);
  });
}

int __wrap_bind(int fd, const sockaddr* address, socklen_t size) {
  return Intercept(RowOf("bind"), -1,
                   [&] { return __real_bind(fd, address, size); });
}

int __wrap_listen(int fd, int backlog) {
  return Intercept(RowOf("listen"), -1,
                   [&] { return __real_listen(fd, backlog); });
}

int __wrap_accept(int fd, sockaddr* address, socklen_t* size) {
  return Intercept(RowOf("accept"), -1,
                   [&] { return __real_accept(fd, address, size); });
}

int __wrap_accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return Intercept(RowOf("accept4"), -1,
                   [&] { return __real_accept4(fd, address, size, flags); });
}

int __wrap_connect(int fd, const sockaddr* address, socklen_t size) {
  return Intercept(RowOf("connect"), -1,
                   [&] { return __real_connect(fd, address, size); });
}

int __wrap_shutdown(int fd, int how) {
  return Intercept(RowOf("shutdown"), -1,
                   [&] { return __real_shutdown(fd, how); });
}

ssize_t __wrap_send(int fd, const void* data, size_t size, int flags) {
  return Intercept(RowOf("send"), ssize_t{-1},
                   [&] { return __real_send(fd, data, size, flags); });
}

ssize_t __wrap_sendto(int fd, const void* data, size_t size, int flags,
                      const sockaddr* to, socklen_t to_size) {
  return Intercept(RowOf("sendto"), ssize_t{-1}, [&] {
    return __real_sendto(fd, data, size, flags, to, to_size);
  });
}

ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  return Intercept(RowOf("sendmsg"), ssize_t{-1},
                   [&] { return __real_sendmsg(fd, message, flags); });
}

ssize_t __wrap_recv(int fd, void* data, size_t size, int flags) {
  return Intercept(RowOf("recv"), ssize_t{-1},
                   [&] { return __real_recv(fd, data, size, flags); });
}

ssize_t __wrap_recvfrom(int fd, void* data, size_t size, int flags,
                        sockaddr* from, socklen_t* from_size) {
  return Intercept(RowOf("recvfrom"), ssize_t{-1}, [&] {
    return __real_recvfrom(fd, data, size, flags, from, from_size);
  });
}

ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  // Without room for handles it has only looked whether there is anything.
  if ((flags & MSG_PEEK) != 0 && message->msg_control == nullptr) {
    return Intercept(RowOf("recvmsg(MSG_PEEK)"), ssize_t{-1},
                     [&] { return __real_recvmsg(fd, message, flags); });
  }
  return Intercept(RowOf("recvmsg"), ssize_t{-1},
                   [&] { return __real_recvmsg(fd, message, flags); });
}

int __wrap_getsockopt(int fd, int level, int option, void* value,
                      socklen_t* size) {
  return Intercept(RowOf("getsockopt"), -1, [&] {
    return __real_getsockopt(fd, level, option, value, size);
  });
}

int __wrap_setsockopt(int fd, int level, int option, const void* value,
                      socklen_t size) {
  return Intercept(RowOf("setsockopt"), -1, [&] {
    return __real_setsockopt(fd, level, option, value, size);
  });
}

int __wrap_getsockname(int fd, sockaddr* address, socklen_t* size) {
  return Intercept(RowOf("getsockname"), -1,
                   [&] { return __real_getsockname(fd, address, size); });
}

int __wrap_getpeername(int fd, sockaddr* address, socklen_t* size) {
  return Intercept(RowOf("getpeername"), -1,
                   [&] { return __real_getpeername(fd, address, size); });
}

int __wrap_poll(pollfd* fds, nfds_t count, int timeout) {
  return Intercept(RowOf("poll"), -1,
                   [&] { return __real_poll(fds, count, timeout); });
}

int __wrap_ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
                 const sigset_t* mask) {
  return Intercept(RowOf("ppoll"), -1,
                   [&] { return __real_ppoll(fds, count, timeout, mask); });
}

int __wrap_epoll_create1(int flags) {
  return Intercept(RowOf("epoll_create1"), -1,
                   [&] { return __real_epoll_create1(flags); });
}

int __wrap_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  return Intercept(RowOf("epoll_ctl"), -1, [&] {
    return __real_epoll_ctl(epoll, operation, fd, event);
  });
}

int __wrap_epoll_wait(int epoll, epoll_event* events, int count, int timeout) {
  return Intercept(RowOf("epoll_wait"), -1, [&] {
    return __real_epoll_wait(epoll, events, count, timeout);
  });
}

int __wrap_nanosleep(const timespec* time, timespec* left) {
  return Intercept(RowOf("nanosleep"), -1,
                   [&] { return __real_nanosleep(time, left); });
}

int __wrap_close(int fd) {
  vmm::testing::internal::BlockIfMarked(fd);
  if (fd == look_at_unread) look_at_unread = -1;
  return Intercept(RowOf("close"), -1, [&] { return __real_close(fd); });
}

int __wrap_dup(int fd) {
  return Intercept(RowOf("dup"), -1, [&] { return __real_dup(fd); });
}

int __wrap_dup2(int fd, int to) {
  return Intercept(RowOf("dup2"), -1, [&] { return __real_dup2(fd, to); });
}

int __wrap_dup3(int fd, int to, int flags) {
  return Intercept(RowOf("dup3"), -1,
                   [&] { return __real_dup3(fd, to, flags); });
}

int __wrap_pipe(int* ends) {
  return Intercept(RowOf("pipe"), -1, [&] { return __real_pipe(ends); });
}

int __wrap_pipe2(int* ends, int flags) {
  return Intercept(RowOf("pipe2"), -1,
                   [&] { return __real_pipe2(ends, flags); });
}

int __wrap_eventfd(unsigned value, int flags) {
  return Intercept(RowOf("eventfd"), -1,
                   [&] { return __real_eventfd(value, flags); });
}

int __wrap_eventfd_read(int fd, eventfd_t* value) {
  return Intercept(RowOf("eventfd_read"), -1,
                   [&] { return __real_eventfd_read(fd, value); });
}

int __wrap_eventfd_write(int fd, eventfd_t value) {
  return Intercept(RowOf("eventfd_write"), -1,
                   [&] { return __real_eventfd_write(fd, value); });
}

int __wrap_memfd_create(const char* name, unsigned flags) {
  return Intercept(RowOf("memfd_create"), -1,
                   [&] { return __real_memfd_create(name, flags); });
}

ssize_t __wrap_read(int fd, void* data, size_t size) {
  if (fd == look_at_unread) return __real_read(fd, data, size);
  return Intercept(RowOf("read"), ssize_t{-1},
                   [&] { return __real_read(fd, data, size); });
}

ssize_t __wrap_pread(int fd, void* data, size_t size, off_t offset) {
  return Intercept(RowOf("pread"), ssize_t{-1},
                   [&] { return __real_pread(fd, data, size, offset); });
}

ssize_t __wrap_write(int fd, const void* data, size_t size) {
  return Intercept(RowOf("write"), ssize_t{-1},
                   [&] { return __real_write(fd, data, size); });
}

ssize_t __wrap_pwrite(int fd, const void* data, size_t size, off_t offset) {
  return Intercept(RowOf("pwrite"), ssize_t{-1},
                   [&] { return __real_pwrite(fd, data, size, offset); });
}

// What calls become when a distribution compiles with _FORTIFY_SOURCE. The
// checks of buffer sizes are left to the builds without wrapping.
ssize_t __wrap___read_chk(int fd, void* data, size_t size, size_t) {
  return __wrap_read(fd, data, size);
}
int __wrap___poll_chk(pollfd* fds, nfds_t count, int timeout, size_t) {
  return __wrap_poll(fds, count, timeout);
}
int __wrap___ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                       const sigset_t* mask, size_t) {
  return __wrap_ppoll(fds, count, timeout, mask);
}
ssize_t __wrap___recv_chk(int fd, void* data, size_t size, size_t, int flags) {
  return __wrap_recv(fd, data, size, flags);
}

}  // extern "C"

// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
