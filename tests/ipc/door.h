// A server of a test's own, for channels.
#ifndef VMMSHARE_TESTS_IPC_DOOR_H_
#define VMMSHARE_TESTS_IPC_DOOR_H_

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "platform/ipc/channel.h"
#include "tests/support/must.h"

namespace vmm::testing {

// Serves each that connects on a thread of its own, until it is destroyed and
// all have been served.
class Door {
 public:
  Door(const std::string& directory,
       std::function<void(platform::Channel)> serve)
      : serve_(std::move(serve)),
        listener_(Must(platform::Listener::Bind({.directory = directory}, {}))),
        end_(Must(platform::CancelEvent::Create())),
        thread_([this] { Accept(); }) {}
  ~Door() {
    end_.Notify();
    thread_.join();
    for (Visit& each : visits_) each.thread.join();
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  const std::string& address() const { return listener_.address(); }

 private:
  struct Visit {
    std::thread thread;
    std::atomic<bool> over = false;
  };
  void Accept() {
    for (;;) {
      absl::StatusOr<platform::Channel> peer =
          listener_.Accept(absl::Now() + absl::Milliseconds(50), &end_);
      visits_.remove_if([](Visit& each) {
        if (!each.over) return false;
        each.thread.join();
        return true;
      });
      if (absl::IsCancelled(peer.status())) return;
      if (!peer.ok()) continue;
      Visit& visit = visits_.emplace_back();
      visit.thread =
          std::thread([this, &visit, peer = *std::move(peer)]() mutable {
            serve_(std::move(peer));
            visit.over = true;
          });
    }
  }

  const std::function<void(platform::Channel)> serve_;
  platform::Listener listener_;
  platform::CancelEvent end_;
  std::list<Visit> visits_;
  std::thread thread_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_DOOR_H_
