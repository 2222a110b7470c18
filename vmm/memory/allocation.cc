#include "vmm/memory/allocation.h"

#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/kind_choice.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

// `kinds`, which are the policy's, the most wanted first.
absl::InlinedVector<HandleKind, 3> InOrder(const SharePolicy& policy,
                                           HandleKindSet kinds) {
  absl::InlinedVector<HandleKind, 3> ordered;
  for (HandleKind kind : policy.kinds()) {
    if (kinds.Has(kind)) ordered.push_back(kind);
    kinds.Remove(kind);
  }
  return ordered;
}

// Creates memory with all kinds of `choice`. Each worked alone, for memory of the
// device: memory of the host may lack one, and the driver may refuse them together.
// Then fewer are tried, every set that has the most wanted kind before those that
// lack it, and so on; not for what says nothing about kinds. Where none works, the
// first kind's reason, with the others' in the message.
absl::StatusOr<PhysicalMemory> CreateWith(const Driver& driver,
                                          const Location& where,
                                          const AllocationOptions& options,
                                          bool rdma, KindChoice& choice) {
  const absl::InlinedVector<HandleKind, 3> wanted =
      InOrder(options.sharing, choice.kinds);
  const std::size_t count = wanted.size();
  // Of each kind, of the last set that had it: where none works, of it alone.
  absl::InlinedVector<absl::Status, 3> refusals(count);
  // A bit for each kind, the most wanted one's the highest.
  for (unsigned set = (1u << count) - 1;; --set) {
    choice.kinds = {};
    for (std::size_t i = 0; i < count; ++i) {
      if ((set >> (count - 1 - i) & 1) != 0) choice.kinds.Add(wanted[i]);
    }
    ASSIGN_OR_RETURN(
        const std::uint64_t granularity,
        PhysicalMemory::Granularity(driver, where, choice.kinds, rdma));
    ASSIGN_OR_RETURN(const ChunkLayout layout,
                     LayOut(options.size, options.max_chunk_size, granularity));
    absl::StatusOr<PhysicalMemory> memory = PhysicalMemory::Create(
        driver, where, layout, choice.kinds, options.sharing.users(), rdma);
    if (memory.ok()) {
      for (std::size_t i = 0; i < count; ++i) {
        if (choice.kinds.Has(wanted[i])) continue;
        choice.passed_over.push_back({wanted[i], refusals[i]});
      }
      return memory;
    }
    // No kind is given up for a flag that the program can do without.
    if (count == 0 || MayPass(memory.status()) ||
        (rdma && options.rdma == Rdma::kTry)) {
      return memory;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (choice.kinds.Has(wanted[i])) refusals[i] = memory.status();
    }
    if (set == 1) break;
  }
  absl::Status none = refusals.front();
  for (std::size_t i = 1; i < count; ++i) {
    none = platform::Annotate(none, "", refusals[i].message());
  }
  return none;
}

absl::StatusOr<MappedRegion> CreateMapped(const Driver& driver,
                                          const Location& where,
                                          absl::Span<const AccessGrant> grants,
                                          const AllocationOptions& options,
                                          bool rdma, KindChoice& choice) {
  ASSIGN_OR_RETURN(PhysicalMemory memory,
                   CreateWith(driver, where, options, rdma, choice));
  return options.at.has_value()
             ? MappedRegion::CreateAt(*options.at, std::move(memory), grants)
             : MappedRegion::Create(driver, std::move(memory),
                                    options.alignment, grants);
}

// Memory of cuMemAlloc(). `where` it is, and who has access, is given.
absl::StatusOr<OwnedMadeBlock> CreateBlock(const Device& device,
                                           const AllocationOptions& options) {
  const auto cannot = [&](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ", which memory of ", device.Describe(),
        " that is shared by legacy CUDA IPC cannot. No other kind of handle "
        "that was asked for works here."));
  };
  if (options.host_numa_node.has_value()) {
    return cannot(
        "AllocationOptions::host_numa_node (in C VMMSHARE_ON_HOST, in Python "
        "host_node=) asks for memory of the host");
  }
  if (options.at.has_value()) {
    return cannot("AllocationOptions::at asks for an address");
  }
  if (!options.also.empty()) {
    return cannot("AllocationOptions::also gives others access");
  }
  if (options.rdma == Rdma::kRequire) {
    return cannot(
        "Rdma::kRequire (in C VMMSHARE_RDMA_REQUIRE, in Python "
        "rdma=\"require\") asks for CUDA's flag gpuDirectRDMACapable");
  }
  ASSIGN_OR_RETURN(OwnedMadeBlock made, MakeBlock(device, options.size));
  const CUdeviceptr at = made.get().block.span.base;
  if (options.alignment != 0 && at % options.alignment != 0) {
    return cannot(absl::StrCat("AllocationOptions::alignment asks for ",
                               options.alignment, " bytes (0x", absl::Hex(at),
                               " was had)"));
  }
  return made;
}

// OK unless the device says that its memory never has the flag.
absl::Status CheckRdmaAttribute(const Device& device) {
  ASSIGN_OR_RETURN(
      const int supported,
      DeviceAttribute(
          device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
          "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"));
  if (supported != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "cuDeviceGetAttribute(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) says 0");
}

// `choice` and what it says of kinds is of the memory that was made.
absl::StatusOr<MappedRegion> CreateForRdma(const Device& device,
                                           const Location& where,
                                           absl::Span<const AccessGrant> grants,
                                           const AllocationOptions& options,
                                           KindChoice& choice) {
  absl::Status supported = CheckRdmaAttribute(device);
  KindChoice mine = choice;
  absl::StatusOr<MappedRegion> region =
      supported.ok() ? CreateMapped(device.driver(), where, grants, options,
                                    /*rdma=*/true, mine)
                     : supported;
  if (region.ok()) choice = std::move(mine);
  // What does not fit with the flag does not without; and what passes says
  // nothing of the flag.
  if (region.ok() || MayPass(region.status())) return region;
  // The caller's own mistake, which no driver was asked about.
  if (absl::IsInvalidArgument(region.status()) &&
      !platform::ResultOf(region.status()).has_value()) {
    return region;
  }
  // Nor does what fails without the flag, too, fail for want of it. With
  // Rdma::kTry that is what comes next. What is made here goes at once.
  if (supported.ok() && options.rdma == Rdma::kRequire) {
    KindChoice others = choice;
    ASSIGN_OR_RETURN(const MappedRegion without,
                     CreateMapped(device.driver(), where, grants, options,
                                  /*rdma=*/false, others));
  }
  // Drivers answer a refused flag with many codes (NOT_SUPPORTED, NOT_FOUND,
  // UNKNOWN): for who asks for it they are one.
  return platform::Annotate(
      platform::WithCode(region.status(),
                         absl::StatusCode::kFailedPrecondition),
      absl::StrCat("memory of ", device.Describe(),
                   " cannot be made for GPUDirect RDMA"),
      "Ask for Rdma::kTry (in Python rdma=\"try\") to go on without it where "
      "it is refused (then IsRdmaCapable() is false), and let network cards "
      "use host memory");
}

}  // namespace

absl::StatusOr<Allocation> Allocation::Create(
    const Device& device, const AllocationOptions& options) {
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  Location where = options.host_numa_node.has_value()
                       ? Location::HostNuma(*options.host_numa_node)
                       : Location::On(device);
  absl::InlinedVector<AccessGrant, 1> grants = {
      {Location::On(device), Access::kReadWrite}};
  grants.insert(grants.end(), options.also.begin(), options.also.end());
  // Before any memory is allocated: what cannot work must cost nothing.
  RETURN_IF_ERROR(CheckReachable(where, grants));
  if (options.size == 0) return LayOut(0, 0, 1).status();
  ASSIGN_OR_RETURN(KindChoice choice, ChooseKinds(device, options.sharing));

  ASSIGN_OR_RETURN(const MemoryId id, NewMemoryId());
  if (choice.kinds.Has(HandleKind::kLegacyIpc)) {
    ASSIGN_OR_RETURN(OwnedMadeBlock made, CreateBlock(device, options));
    const std::uint64_t size = made.get().block.span.size;
    return Allocation(
        device, std::move(where),
        std::make_shared<const OwnedMadeBlock>(std::move(made)), id,
        options.size, ChunkLayout{size, size}, choice.kinds,
        std::move(choice.passed_over), options.sharing.users(), false,
        options.rdma == Rdma::kOff
            ? absl::OkStatus()
            : absl::FailedPreconditionError(
                  "memory of cuMemAlloc() has no flag gpuDirectRDMACapable"));
  }
  absl::StatusOr<MappedRegion> region =
      options.rdma != Rdma::kOff
          ? CreateForRdma(device, where, grants, options, choice)
          : CreateMapped(driver, where, grants, options,
                         /*rdma=*/false, choice);
  absl::Status refusal;
  if (!region.ok() && options.rdma == Rdma::kTry &&
      !absl::IsResourceExhausted(region.status())) {
    refusal = region.status();
    region =
        CreateMapped(driver, where, grants, options, /*rdma=*/false, choice);
  }
  if (!region.ok()) return region.status();
  const ChunkLayout layout = region->memory().layout();
  const HandleKindSet kinds = region->memory().kinds();
  const bool rdma = region->memory().made_for_rdma();
  return Allocation(device, std::move(where), *std::move(region), id,
                    options.size, layout, kinds, std::move(choice.passed_over),
                    options.sharing.users(), rdma, std::move(refusal));
}

CUdeviceptr Allocation::address() const {
  return block() != nullptr ? (*block())->get().block.span.base
                            : std::get<MappedRegion>(memory_).address();
}

bool Allocation::is_mapped() const {
  return block() != nullptr || std::get<MappedRegion>(memory_).is_mapped();
}

AddressSpan Allocation::disclosed() const {
  return block() != nullptr ? (*block())->get().block.Disclosed()
                            : AddressSpan{};
}

std::string Allocation::weakness() const {
  return block() != nullptr
             ? DescribeWeakness(HandleKind::kLegacyIpc, disclosed())
             : "";
}

absl::StatusOr<bool> Allocation::IsRdmaCapable() const {
  if (block() != nullptr) return false;
  return std::get<MappedRegion>(memory_).IsRdmaCapable();
}

Shareable Allocation::shareable() const {
  if (block() != nullptr) {
    return Shareable(device_, where_, *block(), id_, requested_size_);
  }
  return Shareable(device_, where_, std::get<MappedRegion>(memory_).memory(),
                   id_, requested_size_);
}

}  // namespace vmm
