// Segments that come from a pool's owner, and that it forgets.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {
namespace {

// What is taken of an owner, which may be hostile: each segment costs this
// process some hundred bytes, and one that is mapped addresses and, of 65,530
// that Linux lets a process have, a mapping. Of an honest owner that is 512 GiB
// where no option made its segments smaller.
constexpr std::size_t kMaxSegments = 16384;
constexpr std::size_t kMaxUnmapped = 1024;

// Addresses that ranges have together; they cost nothing, but end.
constexpr std::uint64_t kMaxAddresses = 4 * kMaxRangeSize;

}  // namespace

absl::Status Subscription::TakeSegment(Notice notice) {
  const SharedSegment& shared =
      *std::get<std::shared_ptr<const SharedSegment>>(notice);
  ImportOptions options = options_;
  SegmentPlace place = shared.place;
  const std::uint64_t size = shared.ticket.layout.size;
  if (IsKept(place, size)) place = {};
  absl::Status placed;
  if (place.range != 0) {
    absl::StatusOr<Placement> at =
        PlacementOf(place, shared.ticket.host_numa_node.has_value());
    placed = at.status();
    if (at.ok()) options.at = *std::move(at);
  }
  absl::StatusOr<ImportedAllocation> memory =
      placed.ok() ? ImportedAllocation::Open(
                        driver_, shared.ticket,
                        absl::MakeConstSpan(&shared.handle, 1), options)
                  : placed;
  if (absl::IsDataLoss(placed)) return placed;
  if (!memory.ok()) {
    memory = platform::Annotate(
        memory.status(),
        absl::StrCat("segment ", shared.number, " of the pool"));
  }
  const std::uint32_t number = shared.number;
  // Closes the handle before anybody finds the segment.
  notice = Closed();
  platform::MutexLock lock(mutex_);
  const absl::Status mapped = memory.status();
  if (!mapped.ok() && ++unmapped_ > kMaxUnmapped) {
    return platform::Annotate(
        mapped, absl::StrCat("more than ", kMaxUnmapped,
                             " segments of the pool cannot be mapped"));
  }
  if (segments_.size() + kept_.size() >= kMaxSegments) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the pool's owner sent more than ", kMaxSegments,
                     " segments, the most that are taken"));
  }
  const bool is_new =
      segments_.try_emplace(number, Segment{std::move(memory), place, size})
          .second;
  if (is_new && place.range != 0) {
    placed_.try_emplace({place.range, place.offset}, number);
  }
  changed_.NotifyAll();
  if (is_new) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the pool's owner broke the protocol: it sent segment ",
                   number, " twice"));
}

absl::StatusOr<Placement> Subscription::PlacementOf(const SegmentPlace& place,
                                                    bool on_host) {
  std::erase_if(ranges_,
                [](const auto& one) { return one.second.reserved.expired(); });
  const auto found = ranges_.find(place.range);
  // It may go at any moment, with a block that another thread gives back.
  std::shared_ptr<const AddressRange> here =
      found == ranges_.end() ? nullptr : found->second.reserved.lock();
  if (here != nullptr) {
    if (found->second.size != place.size) {
      return absl::DataLossError(absl::StrCat(
          "the pool's owner broke the protocol: range ", place.range, " has ",
          found->second.size, " bytes, and now ", place.size));
    }
    if (found->second.on_host != on_host) {
      return absl::DataLossError(
          absl::StrCat("the pool's owner broke the protocol: range ",
                       place.range, " has memory of ",
                       on_host ? "a device, and now of the host"
                               : "the host, and now of a device"));
    }
    return Placement{std::move(here), place.offset};
  }
  if (found != ranges_.end()) ranges_.erase(found);
  std::uint64_t left = kMaxAddresses;
  for (const auto& [number, one] : ranges_) left -= one.size;
  if (place.size > left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pool's owner wants ", place.size, " bytes of addresses, beside ",
        kMaxAddresses - left, "; at most ", kMaxAddresses, " are taken"));
  }
  ASSIGN_OR_RETURN(
      AddressRange reserved,
      AddressRange::Reserve(driver_, place.size, options_.alignment));
  auto shared = std::make_shared<const AddressRange>(std::move(reserved));
  ranges_[place.range] = {place.size, on_host, shared};
  return Placement{std::move(shared), place.offset};
}

bool Subscription::IsKept(const SegmentPlace& place, std::uint64_t size) const {
  const platform::MutexLock lock(mutex_);
  return place.range != 0 &&
         std::any_of(kept_.begin(), kept_.end(), [&](const auto& one) {
           const Segment& kept = one.second;
           return kept.place.range == place.range &&
                  kept.place.offset < place.offset + size &&
                  place.offset < kept.place.offset + kept.size;
         });
}

void Subscription::KeepWhatIsForgotten() {
  platform::MutexLock lock(mutex_);
  keeps_ = true;
}

void Subscription::TakeForget(const ForgetSegment& forget) {
  Segments::node_type gone;  // Unmapped unlocked.
  platform::MutexLock lock(mutex_);
  const auto found = segments_.find(forget.number);
  if (found == segments_.end()) return;
  // An honest owner forgets no segment of which a block is held.
  found->second.forgotten = true;
  if (!found->second.memory.ok()) --unmapped_;
  if (found->second.blocks == 0) gone = TakeOut(found);
}

Subscription::Segments::node_type Subscription::TakeOut(
    Segments::iterator segment) {
  if (segment == recent_) recent_ = segments_.end();
  Segments::node_type gone = segments_.extract(segment);
  const SegmentPlace& place = gone.mapped().place;
  if (const auto placed = placed_.find({place.range, place.offset});
      placed != placed_.end() && placed->second == gone.key()) {
    placed_.erase(placed);
  }
  if (!keeps_ || !gone.mapped().used) return gone;
  kept_.insert(std::move(gone));
  return {};
}

}  // namespace vmm::pool
