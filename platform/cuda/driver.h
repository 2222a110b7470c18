// Driver: a loaded CUDA driver, and its results as absl::Status.
//
//   absl::StatusOr<Driver> driver = Driver::LoadSystem();
//   if (!driver.ok()) return driver.status();  // names file and reason
//   size_t free = 0, total = 0;
//   if (CUresult r = (*driver)->cuMemGetInfo(&free, &total); r != CUDA_SUCCESS)
//     return driver->Error(r, "cuMemGetInfo()");
//
// A Driver is a small value: copies refer to the same loaded library, which is
// never unloaded (the CUDA driver does not support being unloaded).
// Thread-safe.
#ifndef VMMSHARE_PLATFORM_CUDA_DRIVER_H_
#define VMMSHARE_PLATFORM_CUDA_DRIVER_H_

#include <cuda.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver_table.h"

namespace vmm::platform {

class Driver {
 public:
  // Answers the address of a symbol, or null. Used in place of a library.
  using Lookup = std::function<void*(const char* symbol)>;

  // Loads the installed NVIDIA driver (libcuda.so.1, nvcuda.dll) and calls
  // cuInit. NOT_FOUND when none is installed or it sees no device;
  // FAILED_PRECONDITION when it lacks required entry points (all are named) or
  // would be loaded from the working directory; otherwise as cuInit answers.
  static absl::StatusOr<Driver> LoadSystem();

  // Loads the driver from the file at `path`, which must be absolute, and
  // calls cuInit. The host-memory driver is loaded this way, never silently.
  // INVALID_ARGUMENT for a relative path; otherwise as LoadSystem().
  static absl::StatusOr<Driver> LoadFrom(const std::string& path);

  // Uses the entry points that `lookup` answers, and calls cuInit. `lookup`
  // must know cuGetProcAddress (any version); `name` is where Describe() says it is from.
  static absl::StatusOr<Driver> LoadFromLookup(std::string name, Lookup lookup);

  // The entry points: `driver->cuMemCreate(...)`. Optional entries are null
  // where the driver lacks them: see Need().
  const DriverTable* operator->() const { return &state_->table; }
  const DriverTable& table() const { return state_->table; }

  // OK when the driver has the optional entry `Member`; otherwise
  // UNIMPLEMENTED with its name and the first CUDA version that has it.
  template <auto Member>
  absl::Status Need() const {
    return state_->table.*Member != nullptr ? absl::OkStatus()
                                            : Missing(EntryOf<Member>());
  }

  // Answers what `make` made when it was first asked for, and keeps it exactly
  // as long as the driver's table. For the one user that wants to remember what
  // it learned of this driver: the list of devices in vmm/memory/device.cc. A
  // failure is not kept.
  using Notes = std::shared_ptr<const void>;
  absl::StatusOr<Notes> RememberedNotes(
      const std::function<absl::StatusOr<Notes>()>& make) const;

  // The CUDA version of the driver, as in CUDA_VERSION: 13000 is 13.0.
  int version() const { return state_->version; }
  // Whether this is the host-memory driver: no GPU is involved.
  bool is_host_memory() const { return state_->is_host_memory; }
  // One line for people: what was loaded, its version, and from where.
  std::string Describe() const;

  // The status for `result` of the driver call `call`, which is written with
  // its arguments: "cuMemCreate(size=2097152, device=0)". `advice`, if any,
  // says what to do about it. The result itself travels in the status: see
  // ResultOf(). OK for CUDA_SUCCESS.
  absl::Status Error(CUresult result, absl::string_view call,
                     absl::string_view advice = "") const;

  // Two values are equal when they refer to the same loading.
  friend bool operator==(const Driver& a, const Driver& b) {
    return a.state_ == b.state_;
  }

 private:
  struct Remembered;
  struct State {
    DriverTable table;
    std::string origin;
    int version = 0;
    bool is_host_memory = false;
    Lookup lookup;  // Keeps alive what the entry points live in.
    std::shared_ptr<Remembered> remembered;
  };
  struct EntryInfo {
    const char* name;
    int version;
  };

  explicit Driver(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}

  template <auto Member>
  static EntryInfo EntryOf() {
    EntryInfo info{"", 0};
    ForEachDriverEntry([&info](auto entry) {
      if constexpr (std::is_same_v<decltype(entry), DriverEntry<Member>>) {
        info = {entry.name, entry.version};
      }
    });
    return info;
  }
  absl::Status Missing(EntryInfo entry) const;

  std::shared_ptr<const State> state_;
};

// The absl code vmmshare gives to `result`. docs/errors.md lists them.
absl::StatusCode CodeOf(CUresult result);

// The driver's own result inside `status`, or nullopt when `status` did not
// come from a driver call.
std::optional<CUresult> ResultOf(const absl::Status& status);

// Reports a failure that no caller can be told of: a release in a destructor.
// Prints one line to standard error, except after fork in the child and once
// the driver has shut down, where every release fails and nothing is lost.
void ReportReleaseFailure(const absl::Status& status);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_DRIVER_H_
