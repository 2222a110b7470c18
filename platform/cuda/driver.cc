#include "platform/cuda/driver.h"

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/base/annotate.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/handle_table.h"
#include "platform/os/library.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

// cuda.h declares only the newest signature; drivers before 12.0 have the
// first one alone.
using GetProcAddress11 = CUresult(CUDAAPI*)(const char*, void**, int,
                                            cuuint64_t);
using GetProcAddress12 = CUresult(CUDAAPI*)(const char*, void**, int,
                                            cuuint64_t,
                                            CUdriverProcAddressQueryResult*);

// A symbol that only the host-memory driver has (hostdriver/host_driver.h).
constexpr char kHostDriverMark[] = "vmmshareHostDriverVersion";

// Refuses an environment that would make the host-memory driver end the program.
absl::Status CheckSettings(const std::string& origin,
                           const Driver::Lookup& lookup) {
  const auto check = reinterpret_cast<int (*)(char*, std::size_t)>(
      lookup("vmmshareHostCheckSettings"));
  std::array<char, 512> why{};
  if (check == nullptr ||
      check(why.data(), why.size()) != CUDA_ERROR_INVALID_VALUE) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(origin, " cannot be used: ", why.data(),
                   ". Correct that variable, or unset it"));
}

// Resolves `name` as it was in CUDA `version`, so that a newer driver answers
// the signature this library was compiled against.
class Resolver {
 public:
  static absl::StatusOr<Resolver> Make(const std::string& origin,
                                       const Driver::Lookup& lookup) {
    Resolver resolver;
    resolver.v12_ =
        reinterpret_cast<GetProcAddress12>(lookup("cuGetProcAddress_v2"));
    if (resolver.v12_ == nullptr) {
      resolver.v11_ =
          reinterpret_cast<GetProcAddress11>(lookup("cuGetProcAddress"));
    }
    if (resolver.v12_ == nullptr && resolver.v11_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          origin,
          " has no entry point cuGetProcAddress: it is no CUDA driver, "
          "or one older than CUDA 11.3, the oldest that vmmshare works with. "
          "Install NVIDIA driver 465 or newer."));
    }
    // Drivers refuse to be asked for a version newer than their own (measured).
    const auto get_version = reinterpret_cast<decltype(&cuDriverGetVersion)>(
        resolver.Ask("cuDriverGetVersion", 2020));
    if (get_version == nullptr ||
        get_version(&resolver.newest_) != CUDA_SUCCESS) {
      return absl::FailedPreconditionError(absl::StrCat(
          origin,
          " does not tell its version (cuDriverGetVersion): it is no "
          "CUDA driver that vmmshare works with"));
    }
    return resolver;
  }

  // The entry point `name` as of `version`. Where the driver is older: the
  // newest it has of a required one, whose signature is the same there; none
  // of an optional one, which an older call of that name would not replace.
  void* Resolve(const char* name, int version, EntryNeed need) const {
    if (version <= newest_) return Ask(name, version);
    return need == EntryNeed::kRequired ? Ask(name, newest_) : nullptr;
  }

 private:
  void* Ask(const char* name, int version) const {
    void* address = nullptr;
    CUresult result;
    if (v12_ != nullptr) {
      result =
          v12_(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    } else {
      result = v11_(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT);
    }
    return result == CUDA_SUCCESS ? address : nullptr;
  }

  GetProcAddress12 v12_ = nullptr;
  GetProcAddress11 v11_ = nullptr;
  int newest_ = 0;  // The driver's own version.
};

// The CUDA version a number such as 11040 stands for: "11.4".
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// What to do about a driver that does not start, where its result says it.
absl::string_view AdviceOfInit(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_NO_DEVICE:
      return "No GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES and, "
             "in a container, which devices its runtime and its device rules "
             "let in. A GPU in MIG mode needs instances: nvidia-smi -L.";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "A process that was forked from one that had initialised CUDA "
             "cannot use it: start it by exec(), in Python by "
             "multiprocessing's spawn.";
    case CUDA_ERROR_UNKNOWN:
      return "On Linux, but not in WSL2, often /dev/nvidia-uvm is missing: "
             "modprobe nvidia_uvm on the host, as root; a container must be "
             "given it with its present major number. (nvidia-smi works "
             "without it.)";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "The GPUs wait for the fabric manager: systemctl status "
             "nvidia-fabricmanager, on the host.";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "The library and the kernel's module are of two versions: restart "
             "after an update; in a container, restart it after one on the "
             "host.";
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
      return "A control daemon of MPS was found, and the connection to it "
             "failed: docs/mps.md, and `vmmshare doctor`.";
    default:
      return "";
  }
}

}  // namespace

struct Driver::Remembered {
  Mutex mutex;
  Notes notes ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<Driver> Driver::LoadSystem() {
  absl::StatusOr<Library> library = Library::OpenSystem(SystemDriverName());
  if (!library.ok()) {
    return Annotate(
        library.status(), "",
        "Install the NVIDIA driver (in a container: run it with the NVIDIA "
        "runtime; in WSL2: on Windows). To run without a GPU load the "
        "host-memory driver: from Python by "
        "vmmshare.testing.use_host_driver(), from C++ and C by its path, of a "
        "command by --driver=host.");
  }
  return LoadFromLookup(library->path(), library->AsLookup());
}

absl::StatusOr<Driver> Driver::LoadFrom(const std::string& path) {
  ASSIGN_OR_RETURN(const Library library, Library::OpenPath(path));
  return LoadFromLookup(library.path(), library.AsLookup());
}

absl::StatusOr<Driver> Driver::LoadFromLookup(std::string name, Lookup lookup) {
  IsForkedChild();    // A use of vmmshare: records this process.
  GrowHandleTable();  // Before the driver starts threads.
  RETURN_IF_ERROR(CheckSettings(name, lookup));
  ASSIGN_OR_RETURN(const Resolver resolver, Resolver::Make(name, lookup));

  auto state = std::make_shared<State>();
  std::vector<std::string> missing;
  ForEachDriverEntry([&](auto entry) {
    auto& slot = state->table.*(entry.kMember);
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(
        resolver.Resolve(entry.name, entry.version, entry.need));
    if (slot == nullptr && entry.need == EntryNeed::kRequired) {
      missing.push_back(
          absl::StrCat(entry.name, " (CUDA ", VersionText(entry.version), ")"));
    }
  });
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " lacks ", missing.size(), " entry points that vmmshare needs: ",
        absl::StrJoin(missing, ", "), ". Install a newer driver."));
  }

  state->remembered = std::make_shared<Remembered>();
  state->origin = std::move(name);
  state->is_host_memory = lookup(kHostDriverMark) != nullptr;
  state->lookup = std::move(lookup);
  Driver driver(state);
  if (CUresult r = driver->cuInit(0); r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuInit(0) of ", state->origin),
                        AdviceOfInit(r));
  }
  if (CUresult r = driver->cuDriverGetVersion(&state->version);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuDriverGetVersion()");
  }
  return driver;
}

absl::StatusOr<Driver::Notes> Driver::RememberedNotes(
    const std::function<absl::StatusOr<Notes>()>& make) const {
  Remembered& remembered = *state_->remembered;
  const MutexLock lock(remembered.mutex);
  if (remembered.notes == nullptr) {
    ASSIGN_OR_RETURN(remembered.notes, make());
  }
  return remembered.notes;
}

std::string Driver::Describe() const {
  return absl::StrCat(
      is_host_memory() ? "host-memory driver (no GPU)" : "CUDA driver",
      ", CUDA ", VersionText(version()), ", from ", state_->origin);
}

absl::Status Driver::Missing(EntryInfo entry) const {
  return absl::UnimplementedError(absl::StrCat(
      "the driver (", Describe(), ") has no entry point ", entry.name,
      " of CUDA ", VersionText(entry.version),
      is_host_memory() ? "; it needs a GPU." : "; install a newer driver."));
}

}  // namespace vmm::platform
