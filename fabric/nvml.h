// Nvml: what NVIDIA's management library says of GPUs, fabric and links.
//
// NVML is opened at run time and not needed to build: the few structures that
// are used are declared in nvml_abi.h. A machine without it, a library without
// one of the entry points and a call that fails each answer a Status that says
// so. NVML counts all GPUs of the machine in an order of its own and ignores
// CUDA_VISIBLE_DEVICES, so GPUs are found by UUID alone.
#ifndef VMMSHARE_FABRIC_NVML_H_
#define VMMSHARE_FABRIC_NVML_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace vmm::fabric {

// Of a GPU or MIG instance, or of an NVLink cluster.
using Uuid = std::array<std::uint8_t, 16>;
// "f0613ff9-b933-c38b-3a87-83fbe59ca8a9".
std::string UuidText(const Uuid& uuid);

// How far a GPU is with joining its NVLink fabric. NVML's values.
enum class FabricState : unsigned char {
  kNotSupported = 0,
  kNotStarted = 1,
  kInProgress = 2,
  kCompleted = 3,
};
// "completed"; "unknown (9)" for a value that NVML did not have.
std::string NameOf(FabricState state);

struct FabricInfo {
  // The CUDA driver's word (driver_fabric.h) and not NVML's: then `state` is
  // kCompleted, because it names a clique, and status and health are not known.
  bool of_driver = false;
  FabricState state = FabricState::kNotSupported;
  // NVML's result of joining; it counts once the state is kCompleted.
  int status = 0;
  // NVML's words for `status`.
  std::string status_text;
  // GPUs with the same cluster and clique can reach each other. All zero: of
  // no domain beyond this host (measured on H100 and H200).
  Uuid cluster{};
  unsigned clique = 0;
  // NVML's bits; 0 where the library is too old to have them.
  unsigned health = 0;

  bool joined() const {
    return state == FabricState::kCompleted && status == 0;
  }
  bool in_a_cluster() const { return cluster != Uuid{}; }
  // The GPU's links have less than their full bandwidth.
  bool degraded() const { return (health & 3) == 1; }
};

// A small value; copies share the library, which is shut down with the last
// one. Thread-safe.
class Nvml {
 public:
  // Answers the address of a symbol, or null.
  using Lookup = std::function<void*(const char* symbol)>;

  // The system's library; NOT_FOUND when there is none; FAILED_PRECONDITION
  // when it cannot start (no kernel module, another version of it).
  static absl::StatusOr<Nvml> LoadSystem();
  // The library in the file at `path`, which must be absolute. The
  // host-memory driver is also a stand-in NVML.
  static absl::StatusOr<Nvml> LoadFrom(const std::string& path);
  static absl::StatusOr<Nvml> LoadFromLookup(std::string name, Lookup lookup);

  // Where the library came from.
  const std::string& origin() const;
  // Of the installed driver package: "580.159.04".
  absl::StatusOr<std::string> DriverVersion() const;

  // Whether the GPUs of this machine are in confidential computing mode.
  absl::StatusOr<bool> ConfidentialComputing() const;

  // One GPU, for the calls below. A value.
  struct Gpu {
    void* handle = nullptr;        // Of the whole GPU, in NVML.
    bool is_mig_instance = false;  // What the UUID named.
  };
  // NOT_FOUND when NVML knows no such GPU.
  absl::StatusOr<Gpu> Find(const Uuid& uuid) const;

  // UNIMPLEMENTED where the GPU or the library is too old for a fabric.
  absl::StatusOr<FabricInfo> Fabric(const Gpu& gpu) const;
  // Whether the GPU is split into MIG instances.
  absl::StatusOr<bool> InMigMode(const Gpu& gpu) const;
  // Whether the two reach each other over NVLink.
  absl::StatusOr<bool> JoinedByNvLink(const Gpu& a, const Gpu& b) const;

 private:
  struct State;
  explicit Nvml(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}
  absl::Status Error(int result, const std::string& call) const;

  std::shared_ptr<const State> state_;
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_NVML_H_
