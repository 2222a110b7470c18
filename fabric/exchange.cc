#include "fabric/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"

namespace vmm::fabric {
namespace {

// "rank 3", "ranks 1, 2 and 14 more".
std::string RanksText(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(kNamed, ranks.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kNamed) {
    absl::StrAppend(&text, " and ", ranks.size() - kNamed, " more");
  }
  return text;
}

// "job J, rank 0 of 4".
std::string PlaceOf(const Exchange& exchange) {
  return absl::StrCat("job ", exchange.job(), ", rank ", exchange.rank(),
                      " of ", exchange.size());
}

// A round in which every record came, and whose fence failed all the same.
absl::Status Unended(const Exchange& exchange, absl::string_view what,
                     const absl::Status& fence,
                     const std::vector<int>& silent) {
  return platform::Annotate(
      fence,
      absl::StrCat(PlaceOf(exchange), ": every rank has sent its ", what,
                   ", but the round did not end",
                   silent.empty()
                       ? ""
                       : absl::StrCat(", and there was no sign of life from ",
                                      RanksText(silent))),
      "A rank has died or hangs: look at its own output");
}

// A round in which the records of `missing` did not come, by `cause`.
absl::Status Incomplete(const Exchange& exchange, absl::string_view what,
                        const absl::Status& cause,
                        const std::vector<int>& missing) {
  return platform::Annotate(
      cause,
      absl::StrCat(PlaceOf(exchange), ": no ", what, " came from ",
                   RanksText(missing)),
      absl::StrCat("It has died, hangs, or never made this call: look at the "
                   "output of ",
                   RanksText(missing),
                   ", and give a longer deadline if it is only slow"));
}

// For the program's own functions.
absl::Time TimeOf(Deadline deadline) { return absl::Now() + deadline.Left(); }

// Its part of the time left, of one of `count` waits.
Deadline ShareOf(Deadline deadline, int count) {
  return Deadline::In(deadline.Left() / count);
}

// The same of values that should be there: few of the waits take any time.
Deadline LargeShareOf(Deadline deadline, int count) {
  return ShareOf(deadline, std::min(count, 4));
}

// The ranks that did not notice the failed round by `deadline`, as far as that
// can be found out: each that has noticed says so.
std::vector<int> FindSilent(Exchange& exchange, const std::string& key,
                            Deadline deadline) {
  const std::uint8_t here = 1;
  std::vector<int> silent;
  if (!exchange.Put(key, absl::MakeConstSpan(&here, 1), deadline).ok()) {
    return silent;
  }
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (rank != exchange.rank() &&
        !exchange.Get(rank, key, ShareOf(deadline, exchange.size() - rank))
             .ok()) {
      silent.push_back(rank);
    }
  }
  return silent;
}

}  // namespace

std::string Exchange::NextKey(absl::string_view what) {
  return absl::StrCat("vmmshare.", scope_, scope_.empty() ? "" : ".", what, ".",
                      keys_++);
}

CallbackExchange::CallbackExchange(ExchangeCallbacks callbacks)
    : Exchange(callbacks.scope), callbacks_(std::move(callbacks)) {
  platform::Check(callbacks_.put && callbacks_.fence && callbacks_.get,
                  "a CallbackExchange needs put, fence and get");
  platform::Check(callbacks_.rank >= 0 && callbacks_.rank < callbacks_.size,
                  "the rank of a CallbackExchange must be below its size");
}

absl::Status CallbackExchange::Put(const std::string& key,
                                   absl::Span<const std::uint8_t> value,
                                   Deadline deadline) {
  return platform::Annotate(callbacks_.put(key, value, TimeOf(deadline)),
                            absl::StrCat("the program's put(", key, ")"));
}

absl::Status CallbackExchange::Fence(Deadline deadline) {
  return platform::Annotate(callbacks_.fence(TimeOf(deadline)),
                            "the program's fence()");
}

absl::StatusOr<Bytes> CallbackExchange::Get(int rank, const std::string& key,
                                            Deadline deadline) {
  absl::StatusOr<Bytes> value = callbacks_.get(rank, key, TimeOf(deadline));
  if (value.ok()) return value;
  return platform::Annotate(
      value.status(),
      absl::StrCat("the program's get(rank ", rank, ", ", key, ")"));
}

Gathered Gather(Exchange& exchange, absl::string_view what,
                absl::Span<const std::uint8_t> record, Deadline deadline) {
  const Deadline fence_by =
      deadline - std::min(deadline.Left() / 10, absl::Milliseconds(500));
  const auto size = static_cast<std::size_t>(exchange.size());
  const std::string key = exchange.NextKey(what);

  const absl::Status put = exchange.Put(key, record, fence_by);
  if (!put.ok()) {
    const absl::Status why = platform::Annotate(
        put, absl::StrCat("rank ", exchange.rank(), " cannot tell the others"));
    return {std::vector<absl::StatusOr<Bytes>>(size, why), why};
  }
  const absl::Status fence = exchange.Fence(fence_by);

  Gathered gathered;
  std::vector<int> missing;
  absl::Status first_missing;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    // What is there comes at once: a rank that is missing must not take the
    // time in which the others could be heard. It may be after a fence too: one of
    // libpmix 4.2.3 to 5.0.11 may say that it succeeded when it did not.
    const int left = exchange.size() - rank;
    const Deadline get_by =
        fence.ok() ? LargeShareOf(deadline, left) : ShareOf(deadline, left);
    gathered.records.push_back(exchange.Get(rank, key, get_by));
    if (!gathered.records.back().ok()) {
      if (missing.empty()) first_missing = gathered.records.back().status();
      missing.push_back(rank);
    }
  }
  if (fence.ok() && missing.empty()) return gathered;
  gathered.status =
      missing.empty() ? Unended(exchange, what, fence,
                                FindSilent(exchange, key + ".here", deadline))
                      : Incomplete(exchange, what,
                                   fence.ok() ? first_missing : fence, missing);
  return gathered;
}

}  // namespace vmm::fabric
