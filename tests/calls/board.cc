#include "tests/calls/board.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "platform/os/process.h"

namespace vmm::testing {
namespace {

// No other process or thread has it.
std::string NewName() {
  static std::atomic<int> count = 0;
  return absl::StrCat("new-", platform::CurrentProcessId(), "-", ++count);
}

}  // namespace

std::string Board::PlaceOf(Offered what, std::uint64_t which) const {
  return absl::StrCat(directory_, "/offer-", static_cast<int>(what), "-",
                      which % kPlaces);
}

void Board::Post(Offered what, const Offer& offer, std::uint64_t which) const {
  const std::string file = absl::StrCat(directory_, "/", NewName());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(&offer), sizeof(offer));
  std::filesystem::rename(file, PlaceOf(what, which));
}

std::optional<Offer> Board::Read(Offered what, std::uint64_t which) const {
  std::string file = PlaceOf(what, which);
  if (what == Offered::kMeeting) {
    const std::string mine = absl::StrCat(directory_, "/", NewName());
    std::error_code missing;
    std::filesystem::rename(file, mine, missing);
    if (missing) return std::nullopt;
    file = mine;
  }
  Offer offer;
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(&offer), sizeof(offer))) {
    return std::nullopt;
  }
  if (what == Offered::kMeeting) std::filesystem::remove(file);
  return offer;
}

}  // namespace vmm::testing
