#include "fabric/nvml.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/os/library.h"
#include "platform/os/process.h"

namespace vmm::fabric {
namespace {

using platform::Annotate;
using platform::Library;

// Of nvml.h, which machines that build vmmshare need not have. Layouts,
// versions and values are NVML's binary interface and do not change.
enum Result : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kFunctionNotFound = 13,
  kGpuIsLost = 15,
  kVersionMismatch = 18,
  kArgumentVersionMismatch = 25,
};
using Device = void*;

struct FabricInfoV1 {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
struct FabricInfoV2 {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
static_assert(sizeof(FabricInfoV1) == 28 && sizeof(FabricInfoV2) == 36,
              "laid out as in nvml.h");
struct ConfComputeState {
  unsigned environment;
  unsigned feature;  // 1: on.
  unsigned dev_tools;
};
static_assert(sizeof(ConfComputeState) == 12, "laid out as in nvml.h");
constexpr unsigned kFabricInfoV2 = sizeof(FabricInfoV2) | 2U << 24;

constexpr int kNvLinkIndex = 2;  // NVML_P2P_CAPS_INDEX_NVLINK.

absl::StatusCode CodeOf(int result) {
  switch (result) {
    case kNotSupported:
    case kFunctionNotFound:
    case kArgumentVersionMismatch:
      return absl::StatusCode::kUnimplemented;
    case kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case kNoPermission:
      return absl::StatusCode::kPermissionDenied;
    case kNotFound:
      return absl::StatusCode::kNotFound;
    case kDriverNotLoaded:
    case kVersionMismatch:
      return absl::StatusCode::kFailedPrecondition;
    case kTimeout:
      return absl::StatusCode::kDeadlineExceeded;
    case kGpuIsLost:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

template <typename Function>
void Resolve(const Nvml::Lookup& lookup, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(lookup(name));
}

absl::Status Missing(const std::string& origin, const char* entry) {
  return absl::UnimplementedError(absl::StrCat(
      origin, " has no entry point ", entry,
      ": install a newer driver, if this question needs an answer"));
}

FabricInfo Translate(const unsigned char (&cluster)[16], int status,
                     unsigned clique, unsigned char state) {
  FabricInfo info;
  std::copy(std::begin(cluster), std::end(cluster), info.cluster.begin());
  info.status = status;
  info.clique = clique;
  info.state = static_cast<FabricState>(state);
  return info;
}

}  // namespace

// Entry points are null where the library lacks them.
struct Nvml::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (started && shutdown != nullptr) shutdown();
  }

  // NVML's own words for a result.
  const char* WordsFor(int result) const {
    const char* text = error_string == nullptr ? nullptr : error_string(result);
    return text == nullptr ? "no description" : text;
  }

  std::string origin;
  Lookup lookup;  // Keeps alive what the entry points live in.
  bool started = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*conf_compute)(ConfComputeState*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*is_mig_instance)(Device, unsigned*) = nullptr;
  int (*gpu_of_instance)(Device, Device*) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  int (*fabric_v1)(Device, FabricInfoV1*) = nullptr;
  int (*fabric_v2)(Device, FabricInfoV2*) = nullptr;
  int (*p2p_status)(Device, Device, int, int*) = nullptr;
};

std::string UuidText(const Uuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(uuid.data()), uuid.size()));
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-",
                      hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

std::string NameOf(FabricState state) {
  switch (state) {
    case FabricState::kNotSupported:
      return "not supported";
    case FabricState::kNotStarted:
      return "not started";
    case FabricState::kInProgress:
      return "in progress";
    case FabricState::kCompleted:
      return "completed";
  }
  return absl::StrCat("unknown (", static_cast<int>(state), ")");
}

absl::StatusOr<Nvml> Nvml::LoadSystem() {
  absl::StatusOr<Library> library =
      Library::OpenSystem(platform::SystemNvmlName());
  if (!library.ok()) {
    return Annotate(library.status(), "NVML cannot be asked",
                    "It comes with the NVIDIA driver; a container gets it with "
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility.");
  }
  return LoadFromLookup(library->path(), library->AsLookup());
}

absl::StatusOr<Nvml> Nvml::LoadFrom(const std::string& path) {
  absl::StatusOr<Library> library = Library::OpenPath(path);
  if (!library.ok()) return Annotate(library.status(), "NVML cannot be asked");
  return LoadFromLookup(path, library->AsLookup());
}

absl::StatusOr<Nvml> Nvml::LoadFromLookup(std::string name, Lookup lookup) {
  auto state = std::make_shared<State>();
  Resolve(lookup, "nvmlInit_v2", &state->init);
  Resolve(lookup, "nvmlShutdown", &state->shutdown);
  Resolve(lookup, "nvmlErrorString", &state->error_string);
  Resolve(lookup, "nvmlSystemGetDriverVersion", &state->driver_version);
  Resolve(lookup, "nvmlSystemGetConfComputeState", &state->conf_compute);
  Resolve(lookup, "nvmlDeviceGetHandleByUUID", &state->by_uuid);
  Resolve(lookup, "nvmlDeviceIsMigDeviceHandle", &state->is_mig_instance);
  Resolve(lookup, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
          &state->gpu_of_instance);
  Resolve(lookup, "nvmlDeviceGetMigMode", &state->mig_mode);
  Resolve(lookup, "nvmlDeviceGetGpuFabricInfo", &state->fabric_v1);
  Resolve(lookup, "nvmlDeviceGetGpuFabricInfoV", &state->fabric_v2);
  Resolve(lookup, "nvmlDeviceGetP2PStatus", &state->p2p_status);
  state->origin = std::move(name);
  state->lookup = std::move(lookup);
  if (state->init == nullptr) {
    return Annotate(Missing(state->origin, "nvmlInit_v2"), "this is no NVML");
  }
  Nvml nvml(state);
  if (const int result = state->init(); result != kSuccess) {
    return Annotate(nvml.Error(result, "nvmlInit_v2()"), "",
                    "The kernel module must be loaded, and be of the version "
                    "of this library: see nvidia-smi");
  }
  state->started = true;
  return nvml;
}

const std::string& Nvml::origin() const { return state_->origin; }

absl::Status Nvml::Error(int result, const std::string& call) const {
  return absl::Status(
      CodeOf(result),
      absl::StrCat(call, " of ", state_->origin, " answered ", result, " (",
                   state_->WordsFor(result), ")"));
}

absl::StatusOr<std::string> Nvml::DriverVersion() const {
  constexpr char kEntry[] = "nvmlSystemGetDriverVersion";
  if (state_->driver_version == nullptr) {
    return Missing(state_->origin, kEntry);
  }
  char version[81] = {};
  if (const int r = state_->driver_version(version, sizeof(version) - 1);
      r != kSuccess) {
    return Error(r, absl::StrCat(kEntry, "()"));
  }
  return std::string(version);
}

absl::StatusOr<bool> Nvml::ConfidentialComputing() const {
  constexpr char kEntry[] = "nvmlSystemGetConfComputeState";
  // A library that does not know the mode has no GPU in it.
  if (state_->conf_compute == nullptr) return false;
  ConfComputeState raw{};
  const int r = state_->conf_compute(&raw);
  // The answer of GPUs that have no such mode.
  if (r == kNotSupported) return false;
  if (r != kSuccess) return Error(r, absl::StrCat(kEntry, "()"));
  return raw.feature != 0;
}

absl::StatusOr<Nvml::Gpu> Nvml::Find(const Uuid& uuid) const {
  constexpr char kEntry[] = "nvmlDeviceGetHandleByUUID";
  if (state_->by_uuid == nullptr) return Missing(state_->origin, kEntry);
  // CUDA answers the bytes alone; which prefix they have shows what they name.
  absl::Status failed;
  for (const char* prefix : {"GPU-", "MIG-"}) {
    const std::string text = absl::StrCat(prefix, UuidText(uuid));
    Gpu gpu;
    const int r = state_->by_uuid(text.c_str(), &gpu.handle);
    if (r != kSuccess) {
      if (failed.ok()) failed = Error(r, absl::StrCat(kEntry, "(", text, ")"));
      continue;
    }
    unsigned instance = 0;
    if (state_->is_mig_instance == nullptr ||
        state_->is_mig_instance(gpu.handle, &instance) != kSuccess ||
        instance == 0) {
      return gpu;
    }
    gpu.is_mig_instance = true;
    constexpr char kParent[] = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle";
    if (state_->gpu_of_instance == nullptr) {
      return Missing(state_->origin, kParent);
    }
    const Device handle = gpu.handle;
    if (const int p = state_->gpu_of_instance(handle, &gpu.handle);
        p != kSuccess) {
      return Error(p, absl::StrCat(kParent, "(", text, ")"));
    }
    return gpu;
  }
  return failed;
}

absl::StatusOr<FabricInfo> Nvml::Fabric(const Gpu& gpu) const {
  constexpr char kEntry[] = "nvmlDeviceGetGpuFabricInfoV";
  int result = kFunctionNotFound;
  FabricInfo info;
  if (state_->fabric_v2 != nullptr) {
    FabricInfoV2 raw{};
    raw.version = kFabricInfoV2;
    result = state_->fabric_v2(gpu.handle, &raw);
    if (result == kSuccess) {
      info = Translate(raw.cluster, raw.status, raw.clique, raw.state);
      info.health = raw.health;
    }
  } else if (state_->fabric_v1 != nullptr) {
    FabricInfoV1 raw{};
    result = state_->fabric_v1(gpu.handle, &raw);
    if (result == kSuccess) {
      info = Translate(raw.cluster, raw.status, raw.clique, raw.state);
    }
  } else {
    return Missing(state_->origin, kEntry);
  }
  if (result != kSuccess) return Error(result, absl::StrCat(kEntry, "()"));
  info.status_text = state_->WordsFor(info.status);
  return info;
}

absl::StatusOr<bool> Nvml::InMigMode(const Gpu& gpu) const {
  constexpr char kEntry[] = "nvmlDeviceGetMigMode";
  if (gpu.is_mig_instance) return true;
  if (state_->mig_mode == nullptr) return Missing(state_->origin, kEntry);
  unsigned current = 0;
  unsigned pending = 0;
  const int r = state_->mig_mode(gpu.handle, &current, &pending);
  // The answer of a GPU that cannot be split.
  if (r == kNotSupported) return false;
  if (r != kSuccess) return Error(r, absl::StrCat(kEntry, "()"));
  return current != 0;
}

absl::StatusOr<bool> Nvml::JoinedByNvLink(const Gpu& a, const Gpu& b) const {
  constexpr char kEntry[] = "nvmlDeviceGetP2PStatus";
  if (state_->p2p_status == nullptr) return Missing(state_->origin, kEntry);
  int status = -1;
  if (const int r =
          state_->p2p_status(a.handle, b.handle, kNvLinkIndex, &status);
      r != kSuccess) {
    return Error(r, absl::StrCat(kEntry, "(NVLink)"));
  }
  return status == 0;
}

}  // namespace vmm::fabric
