// vmmshare, one allocation a block.
#include <utility>
#include <variant>

#include "bench/compare/route.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"

namespace bench::compare {
namespace {

using vmm::platform::OsHandle;

template <typename T>
T* Pointer(const Block& block) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(block.own));
}
// A block of `size` bytes that Pointer() of owns `memory`.
template <typename T>
Block Keep(T memory, std::uint64_t size) {
  const CUdeviceptr address = memory.address();
  return {address, size,
          reinterpret_cast<std::uintptr_t>(new T(std::move(memory)))};
}

class DedicatedOwner : public Owner {
 public:
  DedicatedOwner(Gpu& gpu, const vmm::Exporter* exporter)
      : Owner(gpu), exporter_(exporter) {}

  absl::StatusOr<Block> Create(std::uint64_t size,
                               CUstream /*stream*/) override {
    ASSIGN_OR_RETURN(vmm::Allocation made,
                     vmm::Allocation::Create(gpu_.owner(), {.size = size}));
    return Keep(std::move(made), size);
  }

  absl::Status Free(const Block& block, CUstream /*stream*/) override {
    delete Pointer<vmm::Allocation>(block);
    return absl::OkStatus();
  }

  absl::Status Export(const Block& block, Outgoing* out) override {
    const vmm::Shareable memory = Pointer<vmm::Allocation>(block)->shareable();
    ASSIGN_OR_RETURN(const vmm::Ticket ticket,
                     vmm::MakeTicket(memory, NativeKind()));
    const std::vector<std::uint8_t> bytes = vmm::EncodeTicket(ticket);
    std::copy(bytes.begin(), bytes.end(), out->blob.begin());
    out->length = bytes.size();
    ASSIGN_OR_RETURN(
        vmm::ExportedHandle exported,
        exporter_->make(gpu_.driver(), memory.memory()->handle(0)));
    out->handle = std::get<OsHandle>(std::move(exported));
    return absl::OkStatus();
  }

 private:
  const vmm::Exporter* exporter_;
};

class DedicatedImporter : public Importer {
 public:
  using Importer::Importer;

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    std::vector<vmm::ExportedHandle> handles;
    handles.push_back(std::move(in.handle));
    absl::StatusOr<vmm::ImportedAllocation> opened = Timed(
        steps, Step::kImport, [&]() -> absl::StatusOr<vmm::ImportedAllocation> {
          ASSIGN_OR_RETURN(const vmm::Ticket ticket,
                           vmm::DecodeTicket(in.blob));
          return vmm::ImportedAllocation::Open(
              gpu_.driver(), ticket, handles,
              {.grants = {{vmm::Location::On(gpu_.device()),
                           vmm::Access::kReadWrite}}});
        });
    if (!opened.ok()) return opened.status();
    return Keep(*std::move(opened), in.size);
  }

  absl::Status Close(const Block& block) override {
    delete Pointer<vmm::ImportedAllocation>(block);
    return absl::OkStatus();
  }
};

absl::StatusOr<std::unique_ptr<Owner>> Own(Gpu& gpu) {
  ASSIGN_OR_RETURN(const vmm::Exporter* exporter,
                   vmm::FindExporter(NativeKind()));
  return std::make_unique<DedicatedOwner>(gpu, exporter);
}

}  // namespace

const Route routes::kDedicated = {"dedicated", "vmmshare dedicated", true, &Own,
                                  &Make<DedicatedImporter>};

}  // namespace bench::compare
