#include "vmm/memory/internal/exporter.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/driver_block.h"

namespace vmm {

absl::Span<const Exporter> Exporters() {
  static const Exporter all[] = {exporters::OsHandleExporter(),
                                 exporters::kFabric};
  return all;
}

absl::StatusOr<const Exporter*> FindExporter(HandleKind kind) {
  std::string known;
  for (const Exporter& exporter : Exporters()) {
    if (exporter.kind == kind) return &exporter;
    absl::StrAppend(&known, known.empty() ? "" : ", ", NameOf(exporter.kind));
  }
  return absl::UnimplementedError(
      absl::StrCat("memory of cuMemCreate() cannot be shared as ", NameOf(kind),
                   " by this build of vmmshare; it can as ", known));
}

absl::Status CheckHasKind(const Shareable& memory, HandleKind kind) {
  if (memory.kinds().Has(kind)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the memory cannot be shared as ", NameOf(kind), "; it was created for ",
      memory.kinds().ToString(),
      ". Whoever creates it names its kinds (AllocationOptions::sharing): "
      "kinds cannot be added later."));
}

absl::StatusOr<HandleKind> PreferredKind(const Shareable& memory) {
  if (memory.block() != nullptr) return memory.block()->kind;
  for (const Exporter& exporter : Exporters()) {
    if (memory.kinds().Has(exporter.kind)) return exporter.kind;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "memory ", memory.id().ToString(),
      " was created private (handle kinds: ", memory.kinds().ToString(),
      ") and cannot be shared. Name a kind in AllocationOptions::sharing: "
      "kinds cannot be added later."));
}

absl::StatusOr<ExportedHandle> ExportChunk(const Shareable& memory,
                                           HandleKind kind, std::size_t chunk) {
  RETURN_IF_ERROR(CheckHasKind(memory, kind));
  const platform::Driver& driver = memory.device().driver();
  if (memory.block() != nullptr) return ExportBlock(driver, *memory.block());
  ASSIGN_OR_RETURN(const Exporter* exporter, FindExporter(kind));
  return exporter->make(driver, memory.memory()->handle(chunk));
}

}  // namespace vmm
