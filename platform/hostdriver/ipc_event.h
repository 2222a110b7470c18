// The slots of this process's interprocess events.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_IPC_EVENT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_IPC_EVENT_H_

#include <cstdint>

#include "platform/hostdriver/event.h"

namespace vmm::hostdriver {

// These REQUIRE that the lock is held, and so does the end of an Event.

// Gives `event` a slot of this process's file. OUT_OF_MEMORY when all are
// taken.
CUresult TakeSlot(State& state, Event* event);
void ReleaseSlot(std::uint32_t index);
// Removes this process's file, if any: at exit, with events still there.
void RemoveOwnEventFile();

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_IPC_EVENT_H_
