#include <gtest/gtest.h>
#include <io.h>
#include <windows.h>

#include <array>
#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/os/kernel_object_win.h"
#include "tests/support/open_handles.h"

namespace vmm::testing {
namespace {

// What the C++ runtime and the system's own threads open and keep when they
// first need it, the folder of named objects and the job of child.h among it:
// no test can tell whose such a handle is.
constexpr std::array<absl::string_view, 13> kRuntimes = {"Event",
                                                         "Semaphore",
                                                         "Thread",
                                                         "Timer",
                                                         "IoCompletion",
                                                         "TpWorkerFactory",
                                                         "WaitCompletionPacket",
                                                         "IRTimer",
                                                         "Key",
                                                         "EtwRegistration",
                                                         "Directory",
                                                         "Job",
                                                         "Mutant"};

// How many handles of a type a test may bring with it. The runtime's locks get
// their kernel objects when somebody first waits for them: an event for a
// mutex, two semaphores for a condition. Repeated operations are held to none:
// sweeps, and the tests that count themselves.
std::size_t MadeLate(const std::string& type) {
  if (type == "Event" || type == "Semaphore") return 4;
  if (type == "Job") return 1;  // Of child.h, for all children.
  // Its word to a debugger, if there is one, that it is skipped.
  return ::testing::Test::IsSkipped() ? 1 : 0;
}

bool IsRuntimes(const std::string& type) {
  for (const absl::string_view name : kRuntimes) {
    if (name == type) return true;
  }
  return false;
}

// A handle to the thread that looks: the C++ runtime makes one when the thread
// first waits, and so does that in the driver's library.
bool IsOfThisThread(int value, const platform::KernelObject& object) {
  const auto handle =
      reinterpret_cast<HANDLE>(static_cast<std::intptr_t>(value));
  return object.type == "Thread" &&
         ::GetThreadId(handle) == ::GetCurrentThreadId();
}

// Windows lists no process's own handles, but they are small numbers close
// together: the system gives out the lowest free one, or one freed lately.
void ForEachHandle(
    const std::function<void(int, const platform::KernelObject&)>& visit) {
  constexpr int kLargestGap = 512;
  for (int value = 4, gap = 0; gap < kLargestGap; value += 4, ++gap) {
    const auto object = platform::InspectHandle(value);
    if (!object.ok()) continue;
    gap = 0;
    visit(value, *object);
  }
}

}  // namespace

std::map<std::string, std::size_t> OpenHandlesByType() {
  std::map<std::string, std::size_t> types;
  ForEachHandle([&](int value, const platform::KernelObject& object) {
    if (!IsOfThisThread(value, object)) ++types[object.type];
  });
  return types;
}

std::map<int, std::string> OpenHandles() {
  std::map<int, std::string> handles;
  ForEachHandle([&](int value, const platform::KernelObject& object) {
    // Standard error gets another handle whenever it is tapped.
    if (value == ::_get_osfhandle(2) || IsRuntimes(object.type)) return;
    handles[value] = absl::StrCat(object.type, " with access ", object.access);
  });
  return handles;
}

std::size_t OpenHandleCount() {
  DWORD count = 0;
  platform::Check(::GetProcessHandleCount(::GetCurrentProcess(), &count) != 0,
                  "GetProcessHandleCount() failed");
  if (count != 0) return count;
  // Wine always answers 0.
  std::size_t found = 0;
  ForEachHandle([&](int, const platform::KernelObject&) { ++found; });
  return found;
}

namespace {

// Names the types of the runtime of which more are open than may be, or none.
std::string TooMany(const std::map<std::string, std::size_t>& types_before) {
  std::string found;
  for (const auto& [type, count] : OpenHandlesByType()) {
    if (!IsRuntimes(type)) continue;  // Looked at one by one.
    const auto before = types_before.find(type);
    const std::size_t old = before == types_before.end() ? 0 : before->second;
    if (count > old + MadeLate(type)) {
      absl::StrAppend(&found, old, " handles of type ", type,
                      " were open, and now ", count, " are\n");
    }
  }
  return found;
}

}  // namespace

ExpectNoNewHandles::ExpectNoNewHandles()
    : before_(OpenHandles()), types_before_(OpenHandlesByType()) {}

ExpectNoNewHandles::~ExpectNoNewHandles() {
  // A thread that nobody joins, as those of the driver's streams, has an event
  // of its own until it has ended.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  std::string too_many = TooMany(types_before_);
  while (!too_many.empty() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    too_many = TooMany(types_before_);
  }
  if (!too_many.empty()) ADD_FAILURE() << too_many;
  const std::map<int, std::string> after = OpenHandles();
  for (const auto& [handle, object] : after) {
    const auto before = before_.find(handle);
    if (before == before_.end()) {
      ADD_FAILURE() << "handle " << handle << " is left open: " << object;
    } else if (before->second != object) {
      ADD_FAILURE() << "handle " << handle << " was " << before->second
                    << " and is now " << object;
    }
  }
  for (const auto& [handle, object] : before_) {
    if (!after.contains(handle)) {
      ADD_FAILURE() << "handle " << handle << " was closed: " << object;
    }
  }
}

}  // namespace vmm::testing
