// A board on which processes offer to others what those can open. Whoever is killed
// leaves whole offers behind: each is a file that was renamed.
#ifndef VMMSHARE_TESTS_CALLS_BOARD_H_
#define VMMSHARE_TESTS_CALLS_BOARD_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace vmm::testing {

// What an offer is of.
enum class Offered {
  kMemory,
  kPool,
  kBlock,
  kFences,
  kFence,
  kRestorable,
  kMeeting,  // A socket where the other end of a ring, or of a transfer, is awaited.
};

struct Offer {
  std::array<char, 1400> text{};  // Of the share; ends with a 0.
  std::array<std::uint8_t, 64> ticket{};
  std::uint64_t size = 0;
  std::uint32_t count = 0;
  std::uint8_t fill = 0;  // As Thing::fill.
};

class Board {
 public:
  // REQUIRES: `directory` is there.
  explicit Board(std::string directory) : directory_(std::move(directory)) {}

  // Takes the place of an older offer, in one of `kPlaces` that `which` says.
  void Post(Offered what, const Offer& offer, std::uint64_t which) const;
  // None where nothing is offered in that place. It stays, but a meeting, which
  // one alone gets.
  std::optional<Offer> Read(Offered what, std::uint64_t which) const;

  static constexpr std::uint64_t kPlaces = 12;

 private:
  std::string PlaceOf(Offered what, std::uint64_t which) const;
  const std::string directory_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CALLS_BOARD_H_
