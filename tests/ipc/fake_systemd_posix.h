// As much of systemd as a keeper sees: it holds descriptors, answers barriers,
// and passes what it holds to the service when that starts again.
#ifndef VMMSHARE_TESTS_IPC_FAKE_SYSTEMD_POSIX_H_
#define VMMSHARE_TESTS_IPC_FAKE_SYSTEMD_POSIX_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_handle.h"
#include "platform/os/service_manager.h"

namespace vmm::testing {

// Thread-safe.
class FakeSystemd {
 public:
  // Listens in `directory`.
  explicit FakeSystemd(const std::string& directory);
  ~FakeSystemd();

  // $NOTIFY_SOCKET.
  const std::string& address() const { return address_; }

  // Calls `kill` when the `count`-th datagram from now on comes, and loses that
  // one (`lose`) and all that come after it: as if the service had been killed
  // before, or after, it sent it. 0: never. Forgets what it was told before.
  void KillAt(std::size_t count, bool lose, std::function<void()> kill);
  // Whether it has.
  bool killed() const;
  // Listens again.
  void GoOn();
  // How many datagrams it read since KillAt().
  std::size_t seen() const;
  bool ready() const;  // READY=1 came since GoOn().

  // What it holds, the latest first, as systemd passes it on. Copies.
  std::vector<platform::StoredHandle> Stored() const;
  // Puts something there by hand.
  void Plant(const std::string& name, const platform::OsHandle& handle);
  void Clear();

  // It reads nothing, and no other call of it returns, while the lock is held.
  std::unique_lock<std::mutex> StandStill() const {
    return std::unique_lock<std::mutex>(mutex_);
  }

 private:
  struct Datagram {
    std::string text;
    std::vector<platform::OsHandle> handles;
  };
  void Run();
  void Read();
  void Obey(Datagram datagram);

  std::string address_;
  platform::OsHandle socket_;
  platform::CancelEvent stop_;
  mutable std::mutex mutex_;
  // Guarded by mutex_, as all of the following.
  std::vector<platform::StoredHandle> stored_;
  std::function<void()> kill_;
  std::size_t kill_at_ = 0;
  std::size_t seen_ = 0;
  bool lose_ = false;
  bool killed_ = false;
  bool ready_ = false;
  std::thread thread_;
};

// Run in a child: takes the descriptors that the test passes over `channel`
// (PassHandles()), makes them numbers 3 and up, and becomes the child `role`
// of this program with `args`, as systemd starts a service.
[[noreturn]] void BecomeService(platform::Channel channel,
                                const std::string& role,
                                const std::vector<std::string>& args);
void PassHandles(platform::Channel& channel,
                 const std::vector<platform::StoredHandle>& handles);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_FAKE_SYSTEMD_POSIX_H_
