#include "fabric/nvml.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fabric/nvml_abi.h"
#include "fabric/nvml_table.h"
#include "platform/base/annotate.h"
#include "platform/os/library.h"
#include "platform/os/process.h"

namespace vmm::fabric {
namespace {

using platform::Annotate;
using platform::Library;

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

struct Nvml::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (started && table.shutdown != nullptr) table.shutdown();
  }

  // NVML's own words for a result.
  const char* WordsFor(int result) const {
    const char* text =
        table.error_string == nullptr ? nullptr : table.error_string(result);
    return text == nullptr ? "no description" : text;
  }

  std::string origin;
  Lookup lookup;  // Keeps alive what the entry points live in.
  bool started = false;
  nvml::Table table;
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
  state->table = nvml::ReadTable(lookup);
  state->origin = std::move(name);
  state->lookup = std::move(lookup);
  if (state->table.init == nullptr) {
    return Annotate(Missing(state->origin, "nvmlInit_v2"), "this is no NVML");
  }
  Nvml loaded(state);
  if (const int result = state->table.init(); result != nvml::kSuccess) {
    return Annotate(loaded.Error(result, "nvmlInit_v2()"), "",
                    "The kernel module must be loaded, and be of the version "
                    "of this library: see nvidia-smi");
  }
  state->started = true;
  return loaded;
}

const std::string& Nvml::origin() const { return state_->origin; }

absl::Status Nvml::Error(int result, const std::string& call) const {
  return absl::Status(
      nvml::CodeOf(result),
      absl::StrCat(call, " of ", state_->origin, " answered ", result, " (",
                   state_->WordsFor(result), ")"));
}

absl::StatusOr<std::string> Nvml::DriverVersion() const {
  constexpr char kEntry[] = "nvmlSystemGetDriverVersion";
  if (state_->table.driver_version == nullptr) {
    return Missing(state_->origin, kEntry);
  }
  char version[81] = {};
  if (const int r = state_->table.driver_version(version, sizeof(version) - 1);
      r != nvml::kSuccess) {
    return Error(r, absl::StrCat(kEntry, "()"));
  }
  return std::string(version);
}

absl::StatusOr<bool> Nvml::ConfidentialComputing() const {
  constexpr char kEntry[] = "nvmlSystemGetConfComputeState";
  // A library that does not know the mode has no GPU in it.
  if (state_->table.conf_compute == nullptr) return false;
  nvml::ConfComputeState raw{};
  const int r = state_->table.conf_compute(&raw);
  // The answer of GPUs that have no such mode.
  if (r == nvml::kNotSupported) return false;
  if (r != nvml::kSuccess) return Error(r, absl::StrCat(kEntry, "()"));
  return raw.feature != 0;
}

absl::StatusOr<Nvml::Gpu> Nvml::Find(const Uuid& uuid) const {
  constexpr char kEntry[] = "nvmlDeviceGetHandleByUUID";
  if (state_->table.by_uuid == nullptr) return Missing(state_->origin, kEntry);
  // CUDA answers the bytes alone; which prefix they have shows what they name.
  absl::Status failed;
  for (const char* prefix : {"GPU-", "MIG-"}) {
    const std::string text = absl::StrCat(prefix, UuidText(uuid));
    Gpu gpu;
    const int r = state_->table.by_uuid(text.c_str(), &gpu.handle);
    if (r != nvml::kSuccess) {
      if (failed.ok()) failed = Error(r, absl::StrCat(kEntry, "(", text, ")"));
      continue;
    }
    unsigned instance = 0;
    if (state_->table.is_mig_instance == nullptr ||
        state_->table.is_mig_instance(gpu.handle, &instance) !=
            nvml::kSuccess ||
        instance == 0) {
      return gpu;
    }
    gpu.is_mig_instance = true;
    constexpr char kParent[] = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle";
    if (state_->table.gpu_of_instance == nullptr) {
      return Missing(state_->origin, kParent);
    }
    const nvml::Device handle = gpu.handle;
    if (const int p = state_->table.gpu_of_instance(handle, &gpu.handle);
        p != nvml::kSuccess) {
      return Error(p, absl::StrCat(kParent, "(", text, ")"));
    }
    return gpu;
  }
  return failed;
}

absl::StatusOr<FabricInfo> Nvml::Fabric(const Gpu& gpu) const {
  const char* entry = "nvmlDeviceGetGpuFabricInfoV";
  int result = nvml::kFunctionNotFound;
  FabricInfo info;
  if (state_->table.fabric_v2 != nullptr) {
    nvml::FabricInfoV2 raw{};
    raw.version = nvml::kFabricInfoV2;
    result = state_->table.fabric_v2(gpu.handle, &raw);
    if (result == nvml::kSuccess) {
      info = Translate(raw.cluster, raw.status, raw.clique, raw.state);
      info.health = raw.health;
    }
  } else if (state_->table.fabric_v1 != nullptr) {
    entry = "nvmlDeviceGetGpuFabricInfo";
    nvml::FabricInfoV1 raw{};
    result = state_->table.fabric_v1(gpu.handle, &raw);
    if (result == nvml::kSuccess) {
      info = Translate(raw.cluster, raw.status, raw.clique, raw.state);
    }
  } else {
    return Missing(state_->origin, entry);
  }
  if (result != nvml::kSuccess) {
    return Error(result, absl::StrCat(entry, "()"));
  }
  info.status_text = state_->WordsFor(info.status);
  return info;
}

absl::StatusOr<bool> Nvml::InMigMode(const Gpu& gpu) const {
  constexpr char kEntry[] = "nvmlDeviceGetMigMode";
  if (gpu.is_mig_instance) return true;
  if (state_->table.mig_mode == nullptr) return Missing(state_->origin, kEntry);
  unsigned current = 0;
  unsigned pending = 0;
  const int r = state_->table.mig_mode(gpu.handle, &current, &pending);
  // The answer of a GPU that cannot be split.
  if (r == nvml::kNotSupported) return false;
  if (r != nvml::kSuccess) return Error(r, absl::StrCat(kEntry, "()"));
  return current != 0;
}

absl::StatusOr<bool> Nvml::JoinedByNvLink(const Gpu& a, const Gpu& b) const {
  constexpr char kEntry[] = "nvmlDeviceGetP2PStatus";
  if (state_->table.p2p_status == nullptr) {
    return Missing(state_->origin, kEntry);
  }
  int status = -1;
  if (const int r = state_->table.p2p_status(a.handle, b.handle,
                                             nvml::kNvLinkIndex, &status);
      r != nvml::kSuccess) {
    return Error(r, absl::StrCat(kEntry, "(NVLink)"));
  }
  return status == 0;
}

}  // namespace vmm::fabric
