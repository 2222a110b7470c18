#include "vmm/keeper/internal/troubles.h"

#include "absl/strings/str_cat.h"

namespace vmm::keeper {

void Troubles::Note(const absl::Status& why, Clock::time_point now) {
  const auto [found, is_first] = kinds_.try_emplace(why.code(), Kind{now});
  Kind& kind = found->second;
  if (!is_first && now - kind.said < kQuiet) {
    ++kind.unsaid;
    return;
  }
  std::string text(why.message());
  if (kind.unsaid > 0) {
    absl::StrAppend(&text, " (and ", kind.unsaid,
                    " times more since this was said, which is once a minute)");
  }
  kind = Kind{now};
  log_(text);
}

}  // namespace vmm::keeper
