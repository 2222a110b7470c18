// Starting a thread where a lack of them is an error, and not the end of the
// program.
#ifndef VMMSHARE_PLATFORM_OS_START_THREAD_H_
#define VMMSHARE_PLATFORM_OS_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/os/os_error.h"
#include "platform/os/quiet_thread.h"

namespace vmm::platform {

// Has `thread` run `body`, as StartQuietly() and NameThisThread() say. `what_for`
// is for the message: "for a pool's memory". RESOURCE_EXHAUSTED, which names the
// limit, when none can be had; `body` is not run then.
template <typename Body>
absl::Status StartThread(std::thread& thread, const char* name,
                         absl::string_view what_for, Body body) {
  try {
    StartQuietly([&] {
      thread = std::thread([name, body = std::move(body)]() mutable {
        NameThisThread(name);
        body();
      });
    });
  } catch (const std::system_error& error) {
    return Annotate(
        absl::ResourceExhaustedError(absl::StrCat(
            "cannot start a thread ", what_for, ": ", error.what())),
        "", NearLimit());
  }
  return absl::OkStatus();
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_START_THREAD_H_
