#include "vmm/pool/internal/pool_string.h"

#include <algorithm>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/share/internal/addressed_string.h"

namespace vmm {
namespace {

constexpr AddressedForm kForm = {"vmmshare-pool:", "pool",
                                 sizeof(DomainId::bytes)};

}  // namespace

std::string FormatPoolString(const AddressedPool& pool) {
  return FormatAddressed(kForm, pool.domain.bytes, pool.invitation);
}

absl::StatusOr<AddressedPool> ParsePoolString(absl::string_view text) {
  ASSIGN_OR_RETURN(AddressedString parsed, ParseAddressed(kForm, text));
  AddressedPool pool{{}, std::move(parsed.invitation)};
  std::copy(parsed.body.begin(), parsed.body.end(), pool.domain.bytes.begin());
  return pool;
}

}  // namespace vmm
