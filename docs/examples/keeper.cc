// Keeper: weights that outlive the process that loaded them.
//
//   vmmshare keep &                    once on each machine
//   keeper llama                       loads the weights, and seals them
//   keeper llama                       another process: finds them there
//   vmmshare keep --list
//   vmmshare keep --drop=llama
//
// Start it as often as wanted, at once or one after the other: exactly one
// process fills the memory, the others wait until it is complete and attach it
// read-only. Each checks every byte. If the one that fills it is killed, the
// next one does it.
//
//   --driver=host        without a GPU, on host memory
//   --size=64M           bytes of weights
//   --device=0           the GPU that creates or attaches
//   --address=ADDRESS    of the keeper, unless it is this user's
//   --timeout=SECONDS    bounds every wait together (60)
#include "vmm/keeper/keeper.h"

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(examples::Bytes, size, {64 << 20}, "bytes");
ABSL_FLAG(std::string, address, "", "the keeper's; by default this user's");

namespace {

using examples::BytesText;
using examples::Gpu;
using examples::Pattern;
using examples::Print;
using examples::Steps;
using vmm::platform::Driver;

absl::Status Run(int argc, char** argv) {
  const std::vector<std::string> words = examples::ParseCommandLine(argc, argv);
  if (words.size() != 1) {
    return absl::InvalidArgumentError("usage: keeper NAME [--driver=host]");
  }
  const std::string& name = words[0];
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  Print(absl::StrCat("driver: ", driver->Describe()));
  absl::StatusOr<Gpu> gpu = examples::UseGpu(*driver);
  if (!gpu.ok()) return gpu.status();

  Steps steps("keeper");
  absl::StatusOr<vmm::KeeperClient> keeper = vmm::KeeperClient::Connect(
      {.address = absl::GetFlag(FLAGS_address)}, deadline);
  if (!keeper.ok()) return keeper.status();
  absl::StatusOr<vmm::AttachedOrCreated> weights = keeper->AttachOrCreate(
      name, size, *driver, {.until_sealed = true},
      [&] { return vmm::Allocation::Create(gpu->device, {.size = size}); },
      deadline);
  if (!weights.ok()) return weights.status();

  const Pattern pattern{.seed = size};
  if (weights->outcome == vmm::KeptMemoryFrom::kAttached) {
    steps.Done("attach", size);
  } else {
    steps.Done(weights->outcome == vmm::KeptMemoryFrom::kCreated ? "create"
                                                                 : "take over");
    absl::Status filled =
        examples::Fill(*driver, weights->address(), size, pattern);
    if (!filled.ok()) return filled;
    absl::Status sealed = keeper->Seal(name, deadline);
    if (!sealed.ok()) return sealed;
    steps.Done("load and seal", size);
  }
  absl::Status verified =
      examples::Verify(*driver, weights->address(), size, pattern);
  if (!verified.ok()) return verified;
  steps.Done("verify every byte", size);
  Print(absl::StrCat("OK: ", BytesText(size), " of weights under ", name));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("keeper", Run(argc, argv));
}
