// Events, also those shared between processes.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "platform/hostdriver/event_slots.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

struct Event {
  Event() = default;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Whether the record number `target` is done, or never will be because the
  // event's maker destroyed it or died.
  bool Reached(std::uint64_t target) const;

  std::shared_ptr<Context> context;
  EventSlot local{};
  EventSlot* slot = &local;         // In `file`, for an interprocess event.
  std::shared_ptr<EventFile> file;  // Null for a local event.
  std::uint32_t index = 0;
  std::uint64_t generation = 0;
  bool is_maker = true;
  std::shared_ptr<Capture> capture;  // Where it was last recorded, if in one.
};

// The live event `id`; null for a null one; stops on any other value. REQUIRES:
// the lock is held.
std::shared_ptr<Event> FindEvent(const State& state, const char* call,
                                 CUevent id);

// Waits, with the lock let go of meanwhile, until `done()`. Looks again after
// every change in this process and, for changes that other processes make to
// shared memory, every so often: soon at first, later every millisecond.
template <typename Done>
void PollUntil(State& state, Lock& lock, Done done) {
  std::chrono::microseconds pause{20};
  while (!done()) {
    state.progress.wait_for(lock, pause);
    if (pause < std::chrono::milliseconds(1)) pause += pause / 4;
  }
}

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_H_
