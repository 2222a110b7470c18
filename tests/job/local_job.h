// A job whose ranks are threads of this process, and an exchange between them.
#ifndef VMMSHARE_TESTS_JOB_LOCAL_JOB_H_
#define VMMSHARE_TESTS_JOB_LOCAL_JOB_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fabric/exchange.h"

namespace vmm::testing {

// How long after its deadline a rank may be done: what a sanitizer's takes of a
// busy machine to free what it has. Less than any deadline beside it, so that one
// that waits twice as long is found.
inline constexpr absl::Duration kRankGrace = absl::Seconds(4);

class LocalJob {
 public:
  explicit LocalJob(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }

  // What a rank puts goes through this first: to play a rank with a fault.
  std::function<void(int rank, const std::string& key, fabric::Bytes& value)>
      tamper;

  // The functions of `rank`; the job must outlive them.
  fabric::ExchangeCallbacks Callbacks(int rank) {
    fabric::ExchangeCallbacks callbacks;
    callbacks.job = "local";
    callbacks.rank = rank;
    callbacks.size = ranks_;
    callbacks.put = [this, rank](const std::string& key,
                                 absl::Span<const std::uint8_t> value,
                                 absl::Time) {
      fabric::Bytes bytes(value.begin(), value.end());
      if (tamper) tamper(rank, key, bytes);
      const std::lock_guard<std::mutex> lock(mutex_);
      values_[{rank, key}] = std::move(bytes);
      changed_.notify_all();
      return absl::OkStatus();
    };
    callbacks.fence = [this](absl::Time deadline) -> absl::Status {
      std::unique_lock<std::mutex> lock(mutex_);
      const int mine = arrived_++ / ranks_;
      changed_.notify_all();
      const bool all = changed_.wait_until(
          lock, absl::ToChronoTime(deadline),
          [this, mine] { return arrived_ >= (mine + 1) * ranks_; });
      return all ? absl::OkStatus()
                 : absl::DeadlineExceededError("not all ranks came");
    };
    callbacks.get = [this](
                        int of, const std::string& key,
                        absl::Time deadline) -> absl::StatusOr<fabric::Bytes> {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_until(lock, absl::ToChronoTime(deadline), [&] {
        return values_.contains({of, key});
      });
      const auto found = values_.find({of, key});
      if (found == values_.end()) return absl::NotFoundError("nothing put");
      return found->second;
    };
    return callbacks;
  }

  // Runs `rank_main` on a thread for each rank of `ranks`; returns when all
  // have.
  void Run(const std::vector<int>& ranks,
           const std::function<void(int, fabric::Exchange&)>& rank_main) {
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (int rank : ranks) {
      threads.emplace_back([this, rank, &rank_main] {
        fabric::CallbackExchange exchange(Callbacks(rank));
        rank_main(rank, exchange);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void RunAll(const std::function<void(int, fabric::Exchange&)>& rank_main) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks_; ++rank) all.push_back(rank);
    Run(all, rank_main);
  }

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;  // At fences, of all ranks.
  std::map<std::pair<int, std::string>, fabric::Bytes> values_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_JOB_LOCAL_JOB_H_
