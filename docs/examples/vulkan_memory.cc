// Memory that CUDA and Vulkan have both, without a copy: a buffer of Vulkan's
// lies in vmmshare's memory, and vmmshare maps memory of Vulkan's.
//
//   vulkan_memory                    on the installed NVIDIA driver
//   vulkan_memory --control          Vulkan alone: no CUDA, any Vulkan device
//
// It opens no window. Each way goes by an opaque handle, a descriptor on Linux
// and an NT handle on Windows:
//
//   control   Vulkan exports memory of its own and imports it again
//   out       vmmshare exports memory, by ExportRaw(), and Vulkan imports it
//   in        Vulkan exports memory, and vmmshare imports it, by ImportRaw()
//
// Then one side writes and the other checks every byte, both ways round. A way
// that is refused is called so, with the call and its answer; the control worked
// before, so Vulkan is set up. The exit status is 0 only if every way works.
//
//   --size=16M           bytes (16M)
//   --device=N           CUDA's device (0); Vulkan's is the one of its UUID
//   --vulkan=N           this device of Vulkan's, whatever its UUID is
//   --loader=/PATH       Vulkan's loader, if not the system's
//   --driver=host        without a GPU: refused, as Vulkan cannot know its memory
//   --corrupt=OFFSET     changes one byte of what Vulkan writes, to see it found
//   --timeout=SECONDS    bounds every wait together (60)
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/support.h"
#include "docs/examples/vulkan_buffer.h"
#include "docs/examples/vulkan_device.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/share/raw_handle.h"
#include "vmm/vmm.h"

ABSL_FLAG(bool, control, false, "Vulkan with itself alone");
ABSL_FLAG(std::optional<std::uint64_t>, corrupt, std::nullopt,
          "the offset of a byte to change");
ABSL_FLAG(std::string, loader, "", "Vulkan's; by default the system's");
ABSL_FLAG(examples::Bytes, size, {16 << 20}, "bytes");
ABSL_FLAG(std::optional<std::uint64_t>, vulkan, std::nullopt,
          "the device's number with Vulkan; by default CUDA's device");

namespace {

using examples::BytesText;
using examples::Gpu;
using examples::Pattern;
using examples::Print;
using examples::VulkanBuffer;
using examples::VulkanDevice;
using examples::VulkanGpu;
using examples::VulkanInstance;
using vmm::platform::Driver;
using vmm::platform::OsHandle;

constexpr Pattern kData{.seed = 2026};

struct Request {
  std::uint64_t size = 0;
  std::optional<std::uint64_t> corrupt;
};

// This system's own kind, as vmmshare calls it.
vmm::HandleKind Kind() { return vmm::SharePolicy::Native().kinds().front(); }

// Vulkan alone.
absl::Status Control(const VulkanDevice& vulkan, const Request& request) {
  ASSIGN_OR_RETURN(const VulkanBuffer made,
                   VulkanBuffer::Create(vulkan, request.size));
  ASSIGN_OR_RETURN(OsHandle handle, made.Export());
  ASSIGN_OR_RETURN(
      const VulkanBuffer imported,
      VulkanBuffer::Import(vulkan, std::move(handle), made.memory_size()));
  RETURN_IF_ERROR(made.Fill(kData, request.corrupt));
  RETURN_IF_ERROR(imported.Verify(kData));
  RETURN_IF_ERROR(imported.Fill(kData.Inverted(), std::nullopt));
  return made.Verify(kData.Inverted());
}

// Vulkan writes and CUDA reads; then the other way round.
absl::Status CheckBytes(const Gpu& gpu, CUdeviceptr address,
                        const VulkanBuffer& buffer, const Request& request) {
  const Driver& driver = gpu.device.driver();
  RETURN_IF_ERROR(buffer.Fill(kData, request.corrupt));
  RETURN_IF_ERROR(examples::Verify(driver, address, request.size, kData));
  RETURN_IF_ERROR(
      examples::Fill(driver, address, request.size, kData.Inverted()));
  return buffer.Verify(kData.Inverted());
}

// What came of a way: whether the memory was handed over, and then the bytes.
struct Outcome {
  absl::Status handed_over;
  absl::Status bytes;
};

Outcome Out(const Gpu& gpu, const VulkanDevice& vulkan,
            const vmm::Allocation& memory, const Request& request) {
  absl::StatusOr<vmm::RawHandle> raw =
      vmm::ExportRaw(memory.shareable(), 0, Kind());
  if (!raw.ok()) return {raw.status(), absl::OkStatus()};
  const absl::StatusOr<VulkanBuffer> buffer = VulkanBuffer::Import(
      vulkan, vmm::TakeOsHandle(std::move(raw->handle)), raw->size);
  if (!buffer.ok()) return {buffer.status(), absl::OkStatus()};
  return {absl::OkStatus(),
          CheckBytes(gpu, memory.address(), *buffer, request)};
}

Outcome In(const Gpu& gpu, const VulkanDevice& vulkan, const Request& request) {
  const absl::StatusOr<VulkanBuffer> buffer =
      VulkanBuffer::Create(vulkan, request.size);
  if (!buffer.ok()) return {buffer.status(), absl::OkStatus()};
  absl::StatusOr<OsHandle> handle = buffer->Export();
  if (!handle.ok()) return {handle.status(), absl::OkStatus()};
  std::vector<vmm::RawHandle> chunks;
  chunks.push_back({Kind(), buffer->memory_size(), *std::move(handle)});
  const absl::StatusOr<vmm::ImportedAllocation> memory =
      vmm::ImportRaw(gpu.device, vmm::Location::On(gpu.device),
                     std::move(chunks), {.access = vmm::Access::kReadWrite});
  if (!memory.ok()) return {memory.status(), absl::OkStatus()};
  return {absl::OkStatus(),
          CheckBytes(gpu, memory->address(), *buffer, request)};
}

// Prints what came of `way`, and notes its name if it was refused. DATA_LOSS and
// others if the memory was handed over and is not as it should be.
absl::Status Report(absl::string_view way, absl::string_view what,
                    const Outcome& outcome, const Request& request,
                    std::vector<absl::string_view>& refused) {
  const std::string line = absl::StrCat(way, ": ", what, ": ");
  if (!outcome.handed_over.ok()) {
    Print(absl::StrCat(line, "REFUSED: ", outcome.handed_over.ToString()));
    refused.push_back(way);
    return absl::OkStatus();
  }
  if (outcome.bytes.ok()) {
    Print(absl::StrCat(line, "works: ", BytesText(request.size),
                       " written and read by either side"));
  }
  return vmm::platform::Annotate(outcome.bytes, way);
}

// The device that --vulkan names, or the one that is `wanted`, or the first.
absl::StatusOr<const VulkanGpu*> Choose(
    const VulkanInstance& instance, const std::optional<vmm::Device>& wanted) {
  const std::vector<VulkanGpu>& gpus = instance.gpus();
  const std::optional<std::uint64_t> asked = absl::GetFlag(FLAGS_vulkan);
  const std::uint64_t number = asked.value_or(0);
  if (number >= gpus.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--vulkan=", number, ": Vulkan sees ", instance.Describe()));
  }
  if (asked.has_value() || !wanted.has_value()) return &gpus[number];
  for (const VulkanGpu& gpu : gpus) {
    if (gpu.uuid == wanted->uuid()) return &gpu;
  }
  return absl::NotFoundError(absl::StrCat(
      "no device of Vulkan's is ", wanted->Describe(), "; it sees ",
      instance.Describe(), ". Is NVIDIA's Vulkan driver installed?"));
}

absl::Status Ways(const Gpu& gpu, const VulkanDevice& vulkan, Request request) {
  ASSIGN_OR_RETURN(
      const vmm::Allocation memory,
      vmm::Allocation::Create(gpu.device,
                              {.size = request.size,
                               .sharing = vmm::SharePolicy::Require(Kind())}));
  // CUDA maps in steps of its own, memory of Vulkan's too.
  request.size = memory.size();
  std::vector<absl::string_view> refused;
  RETURN_IF_ERROR(Report("out", "vmmshare's memory in Vulkan",
                         Out(gpu, vulkan, memory, request), request, refused));
  RETURN_IF_ERROR(Report("in", "Vulkan's memory in vmmshare",
                         In(gpu, vulkan, request), request, refused));
  if (refused.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("refused: ", absl::StrJoin(refused, ", "),
                   ". The control works, so Vulkan is set up"));
}

absl::Status Run(int argc, char** argv) {
  examples::ParseCommandLine(argc, argv);
  Request request;
  request.size = absl::GetFlag(FLAGS_size).count;
  request.corrupt = absl::GetFlag(FLAGS_corrupt);
  if (request.corrupt >= request.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--corrupt=", *request.corrupt,
                     ": expected an offset below ", request.size));
  }
  const absl::Time deadline = examples::Deadline();
  std::optional<Gpu> gpu;
  if (!absl::GetFlag(FLAGS_control)) {
    ASSIGN_OR_RETURN(const Driver driver, examples::LoadDriver());
    Print(absl::StrCat("driver: ", driver.Describe()));
    ASSIGN_OR_RETURN(gpu, examples::UseGpu(driver));
    Print(absl::StrCat("CUDA: ", gpu->device.Describe()));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<VulkanInstance> instance,
                   VulkanInstance::Create(absl::GetFlag(FLAGS_loader)));
  ASSIGN_OR_RETURN(
      const VulkanGpu* const chosen,
      Choose(*instance,
             gpu.has_value() ? std::optional(gpu->device) : std::nullopt));
  Print(absl::StrCat("Vulkan: ", chosen->name, ", ", chosen->uuid.ToString()));
  ASSIGN_OR_RETURN(const std::unique_ptr<VulkanDevice> vulkan,
                   VulkanDevice::Create(*instance, *chosen, deadline));

  RETURN_IF_ERROR(
      vmm::platform::Annotate(Control(*vulkan, request), "control"));
  Print(absl::StrCat(
      "control: Vulkan's memory in Vulkan: works: ", BytesText(request.size),
      " written and read by either side"));
  if (!gpu.has_value()) {
    Print("OK: Vulkan shares memory with itself");
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Ways(*gpu, *vulkan, request));
  Print("OK: CUDA and Vulkan share memory, whichever of them allocated it");
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("vulkan_memory", Run(argc, argv));
}
