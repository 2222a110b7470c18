#include "vmm/memory/exporter.h"

#include "absl/strings/str_cat.h"

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
      absl::StrCat("memory cannot be shared as ", NameOf(kind),
                   " by this build of vmmshare; it can as ", known));
}

}  // namespace vmm
