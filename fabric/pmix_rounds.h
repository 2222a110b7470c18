// The keys of PMIx that the values of one round after another share.
//
// A launcher's server gives no key back, and a collecting fence sends all that
// was ever put: with keys of its own each round costs more than the one before
// (seen with 100 KB of three ranks: 5 ms in round 0, 390 ms in round 159). So
// the values of a round take the keys of the round before the last, which no
// rank reads any more: a fence ends when all have begun it, and a rank begins
// the next when it has read what it wants.
//
// Such a value keeps its size: of one that changed its size OpenPMIx 4.2.2
// answers NOT-FOUND, or the old one. So a value is cut into pieces of 512,
// 1,024, 2,048 bytes and so on, the last one filled up with zeros.
//
//   offset  size  field of a piece
//   0       8     round
//   8       4     bytes of the message
//   12      ...   its part of the message: the value's name, as 2 bytes of
//                 length and the text, and the value
//
// Internal to fabric/pmix.cc.
#ifndef VMMSHARE_FABRIC_PMIX_ROUNDS_H_
#define VMMSHARE_FABRIC_PMIX_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/exchange.h"

namespace vmm::fabric {

// Where this rank is, and so where all others are. Thread-compatible.
class PmixRounds {
 public:
  using Value = std::pair<std::string, Bytes>;  // Under a key of PMIx.
  using Lookup = std::function<absl::StatusOr<Bytes>(const std::string& key)>;

  static constexpr std::size_t kMaxName = 400;

  // What to put for the value `name` of this round.
  // REQUIRES: a name of at most kMaxName bytes, a value of at most kMaxRecord.
  std::vector<Value> Put(const std::string& name,
                         absl::Span<const std::uint8_t> value);

  // What this rank has put in this round, by name.
  const std::vector<Value>& present() const { return present_; }

  // All have what all have put.
  void End();

  // Whether this rank has put `name` in this round or the last one, and so
  // every other one has at the same place.
  bool Has(const std::string& name) const { return places_.contains(name); }

  // What another rank has put as `name`, of which `look_up` gets the pieces.
  // REQUIRES: Has(name).
  //   NOT_FOUND            that rank has not come to this round
  //   FAILED_PRECONDITION  it put another value in this place
  //   DATA_LOSS            the pieces are not of one value
  //   else                 as `look_up` answers
  absl::StatusOr<Bytes> Get(const std::string& name,
                            const Lookup& look_up) const;

 private:
  struct Place {
    std::uint64_t round;
    std::size_t number;  // Among those of its round.
    std::string Key(std::size_t piece) const;
  };

  std::uint64_t round_ = 0;
  std::vector<Value> present_;
  std::map<std::string, Place> places_;  // Of this round and the last.
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_PMIX_ROUNDS_H_
