#include "fabric/pmix_table.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace vmm::fabric::pmix {
namespace {

template <typename Function>
void Resolve(const platform::Library& library, const char* name,
             Function*& entry, std::string* missing) {
  entry = reinterpret_cast<Function*>(library.Find(name));
  if (entry == nullptr) {
    absl::StrAppend(missing, missing->empty() ? "" : ", ", name);
  }
}

}  // namespace

absl::StatusOr<Table> ReadTable(const platform::Library& library) {
  Table table{};
  std::string missing;
  Resolve(library, "PMIx_Init", table.PMIx_Init, &missing);
  Resolve(library, "PMIx_Finalize", table.PMIx_Finalize, &missing);
  Resolve(library, "PMIx_Put", table.PMIx_Put, &missing);
  Resolve(library, "PMIx_Commit", table.PMIx_Commit, &missing);
  Resolve(library, "PMIx_Fence_nb", table.PMIx_Fence_nb, &missing);
  Resolve(library, "PMIx_Get_nb", table.PMIx_Get_nb, &missing);
  Resolve(library, "PMIx_Error_string", table.PMIx_Error_string, &missing);
  Resolve(library, "PMIx_Get_version", table.PMIx_Get_version, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library.path(), " is no PMIx 3 or newer: it lacks ",
                     missing, ". Install libpmix2 of PMIx 3 or newer."));
  }
  return table;
}

absl::StatusCode CodeOf(Status status) {
  switch (status) {
    case kErrTimeout:
      return absl::StatusCode::kDeadlineExceeded;
    case kErrUnreachable:
    case kErrCommFailure:
    case kErrLostConnection:
      return absl::StatusCode::kUnavailable;
    case kErrBadParameter:
      return absl::StatusCode::kInvalidArgument;
    case kErrOutOfResource:
    case kErrNoMemory:
      return absl::StatusCode::kResourceExhausted;
    case kErrNotFound:
    case kErrProcEntryNotFound:
      return absl::StatusCode::kNotFound;
    case kErrNotSupported:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace vmm::fabric::pmix
