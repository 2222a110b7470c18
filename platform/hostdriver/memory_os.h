// What the driver needs of the operating system: shared memory objects, address
// space, a count of what other processes hold, and notice of fork and exit.
//
// Per-OS: memory_os_*.cc (memfd and mmap; sections with names), usage_*.cc and
// process_*.cc. Behind them are, on POSIX, bounds_posix.h, folders_posix.h and
// own_descriptors_posix.h, on Windows object_names_win.h. Other interfaces with
// per-OS sources are event_slots.h, imex_os.h and OpenKernelLibrary() of kernels.h.
//
// Sizes are bytes and multiples of kGranularity. Functions that can fail return
// false, null or nullopt.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_OS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_OS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "platform/hostdriver/memory_label.h"

namespace vmm::hostdriver {

inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

// The least multiple of `unit` that is not less than `size`. REQUIRES: there is one.
constexpr std::uint64_t RoundUp(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// A descriptor or HANDLE of a memory object; -1 is none.
using OsMemory = std::intptr_t;

// How the CPU may use the memory at its device address.
enum class CpuAccess { kNone, kRead, kReadWrite };

// --- Memory objects ---------------------------------------------------------

// Makes an object of `size` zero bytes that can never change its size and
// carries `label`, so that any process that receives it learns what it is.
std::optional<OsMemory> CreateMemory(const MemoryLabel& label,
                                     std::size_t size);
void CloseMemory(OsMemory memory);
// A new handle of `memory`, for the caller to give away and close.
std::optional<OsMemory> DuplicateMemory(OsMemory memory);
// Where programs that this one executes inherit what is not marked otherwise:
// lets them.
void InheritOnExec(OsMemory memory);

// The kind of handle (CUmemAllocationHandleType) as which memory can be
// exported here.
extern const unsigned long long kNativeHandleType;
// Writes `memory` as that kind's exporters are given it: an int, a HANDLE.
void StoreExported(OsMemory memory, void* shareable);
// Whether CUmemAllocationProp::win32HandleMetaData may be `data` for memory
// of that kind. Windows: OBJECT_ATTRIBUTES. Elsewhere it is not looked at.
bool AreHandleAttributes(const void* data);
// Gives `memory` the security descriptor in such data, if there is one. False
// when the system refuses. Elsewhere: nothing to do.
bool ApplyHandleAttributes(OsMemory memory, const void* data);

struct OpenedMemory {
  OsMemory memory;  // A handle of its own.
  MemoryLabel label;
  std::size_t size;
};
// Opens what another driver exported. nullopt for anything that CreateMemory()
// did not make; `handle` may be any number.
std::optional<OpenedMemory> OpenExported(std::intptr_t handle);

// This process, as others can name it to OpenOf().
std::uint64_t ProcessNumber();
// Opens the memory object that is `memory` in the process `process`, if it
// still is there and its label has `id`. Only for processes of the same user
// that see each other: on Linux, of one PID namespace.
std::optional<OpenedMemory> OpenOf(std::uint64_t process, OsMemory memory,
                                   std::uint64_t id);
// Nothing an adversary must not guess, but not seen twice. 0 if there is none.
std::uint64_t RandomNumber();

// All of `memory`, readable and writable, at an address of the system's choice.
// A forked child has it too, unless it is `on_device`.
void* MapWhole(OsMemory memory, std::size_t size, bool on_device);
void UnmapWhole(void* data, std::size_t size);

// --- Addresses --------------------------------------------------------------

// Reserves addresses that fault on every use, at a multiple of `alignment` (a
// power of two, at least kGranularity); at `hint` if it is not 0 and free.
// Answers 0 when there is no room.
std::uint64_t ReserveAddresses(std::size_t size, std::size_t alignment,
                               std::uint64_t hint);
void FreeAddresses(std::uint64_t address, std::size_t size);
// Makes `memory` visible to the CPU at reserved addresses.
bool ExposeMemory(OsMemory memory, std::uint64_t address, std::size_t size,
                  CpuAccess access);
// Makes the addresses fault again.
bool HideMemory(std::uint64_t address, std::size_t size);

// --- Use of the devices by all processes ------------------------------------

// How long a lock that processes share is waited for. Nobody holds one for more
// than milliseconds, unless it is stopped there.
inline constexpr std::chrono::seconds kLockPatience{3};

// Makes this process one of those that share the budgets of `instance`, until
// it leaves; the last one leaves no file behind. Called by cuInit and at exit.
// False when a lock could not be had in kLockPatience.
bool JoinInstance(const std::string& instance);
void LeaveInstance();

// The bytes that this user's processes hold of the device `uuid` of `instance`.
// Reads /proc: costs milliseconds.
std::uint64_t BytesHeld(const std::string& instance, const Uuid& uuid);

// Creates memory only if the device's `budget` allows it. `slot` is the number
// of the device in the instance. An upper bound of the use is kept in a file
// that all processes share, and the exact use is looked up when that bound is
// not good enough. Sets `why` when it fails.
enum class NotCreated { kNoSystemCall, kOverBudget, kLockNotHad };
std::optional<OsMemory> CreateWithinBudget(const MemoryLabel& label,
                                           std::size_t size, int slot,
                                           std::uint64_t budget,
                                           NotCreated* why);

// --- The process ------------------------------------------------------------

// The user, as a number.
std::uint64_t UserId();
// From now on, in a forked child `on_fork` runs, and at exit `on_exit`. The child
// has none of the handles of memory and of shared files that are the driver's
// own here, nor what it mapped of devices: they last no longer than this process
// keeps them.
void WatchProcess(void (*on_fork)(), void (*on_exit)());
// Runs `main` on a thread that takes no signals. False when there is none.
bool StartThread(std::function<void()> main);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MEMORY_OS_H_
