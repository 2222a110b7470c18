// Linux before 6.5, for the program that this is loaded into (LD_PRELOAD): no
// message brings a reference to the process that sent it (SO_PASSPIDFD).
#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>

extern "C" int setsockopt(int socket, int level, int option, const void* value,
                          socklen_t size) {
  // <sys/socket.h> has the name only in newer C libraries.
  constexpr int kSoPassPidfd = 76;
  if (level == SOL_SOCKET && option == kSoPassPidfd) {
    errno = ENOPROTOOPT;
    return -1;
  }
  static const auto next = reinterpret_cast<decltype(&::setsockopt)>(
      ::dlsym(RTLD_NEXT, "setsockopt"));
  return next(socket, level, option, value, size);
}
