// vmmshare_pages PAGE: prints a manual page or a completion of `vmmshare`, for
// the build. PAGE is the file's name.
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/say.h"

namespace {

std::optional<std::string> Page(absl::string_view name) {
  using vmm::tool::Command;
  if (name == "vmmshare.bash") return vmm::tool::BashCompletion();
  if (name == "_vmmshare") return vmm::tool::ZshCompletion();
  if (name == "vmmshare.fish") return vmm::tool::FishCompletion();
  if (name == "vmmshare.1") {
    return vmm::tool::ManualPage(nullptr, VMMSHARE_VERSION);
  }
  for (const Command& command : vmm::tool::Commands()) {
    if (name == absl::StrCat("vmmshare-", command.name, ".1")) {
      return vmm::tool::ManualPage(&command, VMMSHARE_VERSION);
    }
  }
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<std::string> page = Page(argc > 1 ? argv[1] : "");
  if (!page.has_value()) {
    vmm::tool::Say(stderr, "vmmshare_pages: no page is called so\n");
    return 2;
  }
  return vmm::tool::Say(stdout, *page) ? 0 : 1;
}
