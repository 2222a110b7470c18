#include "fabric/pmix.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fabric/job_record.h"
#include "fabric/pmix_client.h"
#include "fabric/pmix_rounds.h"
#include "platform/base/annotate.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/process.h"

namespace vmm::fabric {
namespace {

// A fence that takes longer is one in which somebody may be missing.
constexpr absl::Duration kLate = absl::Seconds(1);

// What each rank puts before the first fence: whether its libpmix is one that
// gives what was put last under a key that was put again.
constexpr char kAgain[] = "vmmshare.again";

}  // namespace

// What the exchanges of this process share.
struct PmixExchange::State {
  std::string library;  // As PmixOptions named it.
  std::shared_ptr<PmixClient> client;
  int exchanges = 0;  // Made so far.
  bool fenced = false;
  bool fence_failed = false;
  // Where all ranks can use keys again, from the first fence on.
  std::optional<PmixRounds> rounds;

  // As Exchange::Fence(), of a job in which none failed.
  absl::Status Fence(Deadline deadline) {
    const std::uint8_t again = client->ShowsWhatWasPutAgain() ? 1 : 0;
    if (!fenced) {
      RETURN_IF_ERROR(client->Put({{kAgain, {again}}}, deadline));
    }
    // Should it fail, other nodes ask for what this rank has put by keys that
    // were never put before: of others they take what they have already.
    const auto late = [&] {
      if (rounds) client->Put(rounds->present(), deadline).IgnoreError();
    };
    RETURN_IF_ERROR(
        client->Fence(std::min(kLate, deadline.Left() / 4), late, deadline));
    if (rounds) rounds->End();
    if (fenced) return absl::OkStatus();
    fenced = true;
    bool all = again == 1;
    for (int rank = 0; all && rank < client->size(); ++rank) {
      ASSIGN_OR_RETURN(const Bytes theirs, client->Get(rank, kAgain, deadline));
      all = theirs == Bytes{1};
    }
    if (all) rounds.emplace();
    return absl::OkStatus();
  }
};

bool LaunchedWithPmix() {
  const char* name_space = std::getenv("PMIX_NAMESPACE");
  return name_space != nullptr && *name_space != '\0';
}

// The process's connection to the launcher's server, from the first Connect()
// to the exit.
class PmixExchange::Session {
 public:
  static Session& Get() {
    static Session* const session = new Session;
    return *session;
  }

  absl::StatusOr<std::unique_ptr<PmixExchange>> Connect(
      const PmixOptions& options, Deadline deadline) {
    // First of all: in a forked child the turn may be a thread's that is not
    // there, and so may the mutex.
    const std::uint64_t self = platform::ProcessMark();
    std::uint64_t rank = 0;
    if (!process_.compare_exchange_strong(rank, self) && rank != self) {
      return absl::FailedPreconditionError(absl::StrCat(
          "process ", static_cast<std::uint32_t>(rank),
          " is the rank, and this one is forked from "
          "it: exchange in the rank, or start programs of their own"));
    }
    RETURN_IF_ERROR(TakeTurn(deadline));
    auto made = ConnectInTurn(options, deadline);
    const platform::MutexLock lock(mutex_);
    taken_ = false;
    turn_.NotifyOne();
    return made;
  }

 private:
  // Others may connect meanwhile, each by a deadline of its own.
  absl::Status TakeTurn(Deadline deadline) {
    platform::MutexLock lock(mutex_);
    while (taken_) {
      if (deadline.Passed()) {
        return absl::DeadlineExceededError(
            "another thread's PMIx_Init() did not end by the deadline");
      }
      turn_.WaitFor(mutex_, deadline.Slice());
    }
    taken_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<PmixExchange>> ConnectInTurn(
      const PmixOptions& options, Deadline deadline) {
    if (state_ == nullptr) {
      auto state = std::make_shared<State>();
      state->library = options.library;
      ASSIGN_OR_RETURN(state->client,
                       PmixClient::Join(options.library, deadline));
      state_ = std::move(state);
      // After libpmix was opened, hence before what it does at exit itself.
      std::atexit([] { Get().Leave(); });
    }
    if (state_->library != options.library) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this process has joined its job by ", state_->client->origin(),
          ", and cannot by ", options.library, " too"));
    }
    RETURN_IF_ERROR(state_->client->Learn(deadline));
    return std::unique_ptr<PmixExchange>(
        new PmixExchange(state_, state_->exchanges++));
  }

  // In at most five seconds. A launcher takes a rank that ends without it for
  // one that failed; that it failed can be told to nobody.
  void Leave() {
    if (process_ != platform::ProcessMark()) return;
    state_->client->Leave(Deadline::In(absl::Seconds(5)));
  }

  platform::Mutex mutex_;
  platform::CondVar turn_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<State> state_;  // Of whoever has the turn; set once.
  std::atomic<std::uint64_t> process_ = 0;  // The mark of who tried first.
};

PmixExchange::PmixExchange(std::shared_ptr<State> state, int number)
    : Exchange(absl::StrCat(number)), state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<PmixExchange>> PmixExchange::Connect(
    const PmixOptions& options, Deadline deadline) {
  if (!LaunchedWithPmix()) {
    return absl::FailedPreconditionError(
        "no launcher offers PMIx to this process: PMIX_NAMESPACE is not set. "
        "Start the program by `mpirun -n RANKS` of Open MPI 4 or newer, `prun "
        "-n RANKS`, or `srun --mpi=pmix -n RANKS`; or supply an exchange of "
        "your own (CallbackExchange).");
  }
  return Session::Get().Connect(options, deadline);
}

const std::string& PmixExchange::job() const { return state_->client->job(); }
int PmixExchange::rank() const { return state_->client->rank(); }
int PmixExchange::size() const { return state_->client->size(); }
int PmixExchange::local_rank() const { return state_->client->local_rank(); }
std::string PmixExchange::Describe() const {
  return state_->client->Describe();
}

absl::Status PmixExchange::Put(const std::string& key,
                               absl::Span<const std::uint8_t> value,
                               Deadline deadline) {
  if (key.size() > PmixRounds::kMaxName || value.size() > kMaxRecord) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PmixExchange::Put(", key, ", ", value.size(),
        " bytes): a key has at most ", PmixRounds::kMaxName,
        " characters, and a value at most ", kMaxRecord, " bytes"));
  }
  // After a fence that failed there is no next round.
  return state_->client->Put(
      state_->rounds && !state_->fence_failed
          ? state_->rounds->Put(key, value)
          : std::vector{PmixClient::Value(key, {value.begin(), value.end()})},
      deadline);
}

absl::Status PmixExchange::Fence(Deadline deadline) {
  if (state_->fence_failed) {
    // The one that failed may still be under way in the server.
    return absl::FailedPreconditionError(
        "an earlier PMIx_Fence() of this job failed, so no other can be relied "
        "on. Start the job again.");
  }
  const absl::Status status = state_->Fence(deadline);
  state_->fence_failed = !status.ok();
  return status;
}

absl::StatusOr<Bytes> PmixExchange::Get(int rank, const std::string& key,
                                        Deadline deadline) {
  const auto look_up = [&](const std::string& name) {
    return state_->client->Get(rank, name, deadline);
  };
  if (!state_->rounds || !state_->rounds->Has(key)) return look_up(key);
  absl::StatusOr<Bytes> value = state_->rounds->Get(key, look_up);
  if (value.ok()) return value;
  if (state_->fence_failed) return look_up(key);
  return platform::Annotate(value.status(), absl::StrCat("rank ", rank));
}

}  // namespace vmm::fabric
