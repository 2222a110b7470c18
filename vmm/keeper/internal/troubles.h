// Troubles: what the keeper's log says of connections that it cannot accept;
// internal to vmm/.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_TROUBLES_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_TROUBLES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace vmm::keeper {

// The acceptor tries again fifty times a second while somebody waits, for as long
// as the trouble lasts, and whoever may connect can make it last. So each kind of
// trouble, by its code, is said once a minute. Thread-compatible.
class Troubles {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kQuiet{1};

  explicit Troubles(std::function<void(const std::string&)> log)
      : log_(std::move(log)) {}
  void Note(const absl::Status& why, Clock::time_point now = Clock::now());

 private:
  struct Kind {
    Clock::time_point said;
    std::uint64_t unsaid = 0;  // Since then.
  };

  std::function<void(const std::string&)> log_;
  std::map<absl::StatusCode, Kind> kinds_;
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_TROUBLES_H_
