// StartSet: where the blocks of a segment start; internal to vmm/.
//
// A bit for each granule, and above that a bit for each word that is not 0, up
// to one word: so that the next start below any granule is found in a few
// steps, however large the block around it is.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_START_SET_H_
#define VMMSHARE_VMM_POOL_INTERNAL_START_SET_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace vmm::pool {

// A set of numbers below a limit. Thread-compatible.
class StartSet {
 public:
  explicit StartSet(std::uint64_t limit);

  // REQUIRES: `number` is below the limit.
  void Insert(std::uint64_t number);
  void Erase(std::uint64_t number);
  // The largest one that is not above `number`.
  std::optional<std::uint64_t> AtOrBelow(std::uint64_t number) const;

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // The granules first.
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_START_SET_H_
