#include "vmm/keeper/internal/refusals.h"

#include "absl/strings/str_cat.h"

namespace vmm::keeper {

std::string Describe(const Client& client) {
  return absl::StrCat("process ", client.pid, " of user ", client.user.text());
}

absl::Status NotKept() {
  return absl::NotFoundError(
      "nothing is kept under this name; `vmmshare keep --list` shows what is");
}

absl::Status Taken(const Client& by, bool kept) {
  return absl::AlreadyExistsError(
      absl::StrCat("the name is taken by ", Describe(by), ", which ",
                   kept ? "put" : "is creating",
                   " it. Attach it, drop it first, or choose another name."));
}

}  // namespace vmm::keeper
