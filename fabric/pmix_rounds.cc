#include "fabric/pmix_rounds.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fabric/job_record.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/base/wire.h"

namespace vmm::fabric {
namespace {

constexpr std::size_t kHeader = 12;
constexpr std::size_t kMaxMessage = kMaxRecord + PmixRounds::kMaxName + 2;

constexpr std::size_t SizeOf(std::size_t piece) {
  return std::size_t{512} << piece;
}

absl::Status NotOneValue(absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      "the PMIx server gave pieces that are not of one value: ", what));
}

}  // namespace

std::string PmixRounds::Place::Key(std::size_t piece) const {
  return absl::StrCat("vmmshare.", round % 2, ".", number, ".", piece);
}

std::vector<PmixRounds::Value> PmixRounds::Put(
    const std::string& name, absl::Span<const std::uint8_t> value) {
  platform::Check(name.size() <= kMaxName && value.size() <= kMaxRecord,
                  "a value of a round has a short name and few bytes");
  const Place place{round_, present_.size()};
  present_.emplace_back(name, Bytes(value.begin(), value.end()));
  places_.insert_or_assign(name, place);

  Bytes message;
  platform::WireWriter writer(message);
  PutBlob(writer, name);
  writer.PutBytes(value);
  const auto size = static_cast<std::uint32_t>(message.size());
  std::vector<Value> pieces;
  absl::Span<const std::uint8_t> left = message;
  do {
    const std::size_t capacity = SizeOf(pieces.size());
    Bytes bytes;
    bytes.reserve(capacity);
    platform::WireWriter out(bytes);
    out.Put<std::uint64_t>(place.round);
    out.Put<std::uint32_t>(size);
    const std::size_t part = std::min(left.size(), capacity - kHeader);
    out.PutBytes(left.subspan(0, part));
    bytes.resize(capacity);
    pieces.emplace_back(place.Key(pieces.size()), std::move(bytes));
    left.remove_prefix(part);
  } while (!left.empty());
  return pieces;
}

void PmixRounds::End() {
  std::erase_if(places_, [this](const auto& named) {
    return named.second.round < round_;
  });
  present_.clear();
  ++round_;
}

absl::StatusOr<Bytes> PmixRounds::Get(const std::string& name,
                                      const Lookup& look_up) const {
  const auto found = places_.find(name);
  platform::Check(found != places_.end(),
                  "a value is of this or the last round");
  const Place& place = found->second;
  Bytes message;
  std::size_t size = 0;
  std::size_t piece = 0;
  do {
    ASSIGN_OR_RETURN(const Bytes bytes, look_up(place.Key(piece)));
    if (bytes.size() != SizeOf(piece)) {
      return NotOneValue(absl::StrCat(bytes.size(), " bytes as ",
                                      place.Key(piece), "; expected ",
                                      SizeOf(piece)));
    }
    platform::WireReader in(bytes);
    const auto round = in.Take<std::uint64_t>();
    const auto total = in.Take<std::uint32_t>();
    if (round != place.round) {
      return absl::NotFoundError(absl::StrCat(
          "it is in round ", round, ", and this rank in round ", place.round));
    }
    if (piece == 0) size = total;
    if (total != size || size > kMaxMessage) {
      return NotOneValue(absl::StrCat("of ", size, " and ", total, " bytes"));
    }
    const std::size_t part = std::min(size - message.size(), in.left());
    message.insert(message.end(), bytes.begin() + kHeader,
                   bytes.begin() + static_cast<std::ptrdiff_t>(kHeader + part));
    ++piece;
  } while (message.size() < size);

  platform::WireReader in(message);
  const std::string put = TakeBlob(in, kMaxName);
  if (in.overrun()) return NotOneValue("there is no name in them");
  if (put != name) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it has put ", put, " where this rank put ", name,
        ": every rank makes the same collective calls in the same order"));
  }
  message.erase(message.begin(),
                message.end() - static_cast<std::ptrdiff_t>(in.left()));
  return message;
}

}  // namespace vmm::fabric
