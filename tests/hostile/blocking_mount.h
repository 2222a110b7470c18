// A file on a FUSE mount whose server has stopped to answer: close(), fstat()
// and the like of it block until the server ends.
#ifndef VMMSHARE_TESTS_HOSTILE_BLOCKING_MOUNT_H_
#define VMMSHARE_TESTS_HOSTILE_BLOCKING_MOUNT_H_

#include <sys/types.h>

#include <string>

#include "platform/os/os_handle.h"

namespace vmm::testing {

// Mounted in user and mount namespaces of this process's own. The server is
// another process, for this one must not wait for itself when it closes the
// file as it ends; it ends with this one.
class BlockingMount {
 public:
  // file() is empty where FUSE or namespaces are not to be had. REQUIRES: this
  // process has one thread.
  explicit BlockingMount(const std::string& directory);
  // Ends the server: what blocks on the file fails then.
  ~BlockingMount();
  BlockingMount(const BlockingMount&) = delete;
  BlockingMount& operator=(const BlockingMount&) = delete;

  const platform::OsHandle& file() const { return file_; }

 private:
  pid_t server_ = -1;
  platform::OsHandle file_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_HOSTILE_BLOCKING_MOUNT_H_
