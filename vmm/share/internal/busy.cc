#include "vmm/share/internal/busy.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/time/clock.h"
#include "platform/os/machine.h"

namespace vmm {
namespace {

// The longest pause: a place that becomes free is not left so for longer.
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// What a try takes at least.
constexpr absl::Duration kShortestTry = absl::Milliseconds(2);

// From 0.5 to 1.
double Jitter() {
  std::array<std::uint8_t, 2> bytes{};
  if (!platform::FillRandom(absl::MakeSpan(bytes)).ok()) return 1;
  return 0.5 + (bytes[0] + 256.0 * bytes[1]) / (2 * 65536.0);
}

}  // namespace

absl::Status TurnedAwayUnread(absl::string_view server,
                              const absl::Status& hung_up) {
  return absl::ResourceExhaustedError(absl::StrCat(
      server,
      " hung up before it was asked for anything, as one with too many "
      "connections does: ",
      hung_up.message()));
}

bool Backoff::has_deadline() const {
  return deadline_.Left() != absl::InfiniteDuration();
}

bool Backoff::Pause(Busy busy) {
  if (!has_deadline() && (busy != Busy::kUnread || tries_ > 1)) return false;
  const absl::Duration left = deadline_.Left() - kShortestTry;
  if (left <= absl::ZeroDuration()) return false;
  absl::SleepFor(std::min(left, pause_ * Jitter()));
  pause_ = std::min(2 * pause_, kLongestPause);
  ++tries_;
  return true;
}

}  // namespace vmm
