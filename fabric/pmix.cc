#include "fabric/pmix.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fabric/pmix_abi.h"
#include "platform/base/annotate.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/library.h"
#include "platform/os/process.h"
#include "platform/os/start_thread.h"

namespace vmm::fabric {
namespace {

constexpr char kLibrary[] = "libpmix.so.2";

// An answer that is waited for. libpmix may give it after the waiter has left:
// both hold it.
class Answer {
 public:
  struct Content {
    pmix::Status status = pmix::kSuccess;
    std::uint16_t type = 0;
    std::uint32_t number = 0;
    Bytes bytes;
  };

  // What was asked. libpmix looks at it from a thread of its own, until it
  // answers (seen: it does not copy the key).
  pmix::Proc process{};
  std::string key;
  pmix::Info how{};

  void Give(Content content) {
    const platform::MutexLock lock(mutex_);
    content_ = std::move(content);
    given_.NotifyAll();
  }

  // Nothing when it has not come by `deadline`.
  std::optional<Content> WaitFor(Deadline deadline) {
    platform::MutexLock lock(mutex_);
    while (!content_.has_value() && !deadline.Passed()) {
      given_.WaitFor(mutex_, deadline.Slice());
    }
    return content_;
  }

 private:
  platform::Mutex mutex_;
  platform::CondVar given_;
  std::optional<Content> content_ ABSL_GUARDED_BY(mutex_);
};

// What libpmix is given to call back with; each is called once.
void* Hold(const std::shared_ptr<Answer>& answer) {
  return new std::shared_ptr<Answer>(answer);
}
std::shared_ptr<Answer> TakeBack(void* data) {
  auto* held = static_cast<std::shared_ptr<Answer>*>(data);
  std::shared_ptr<Answer> answer = std::move(*held);
  delete held;
  return answer;
}

void Done(pmix::Status status, void* data) {
  TakeBack(data)->Give({status, 0, 0, {}});
}

void GotValue(pmix::Status status, pmix::Value* value, void* data) {
  Answer::Content content{status, 0, 0, {}};
  if (status == pmix::kSuccess && value != nullptr) {
    content.type = value->type;
    if (value->type == pmix::kByteObject) {
      const pmix::ByteObject& from = value->data.bytes;
      content.bytes.assign(from.bytes, from.bytes + from.size);
    } else if (value->type == pmix::kUint32) {
      content.number = value->data.uint32;
    } else if (value->type == pmix::kUint16) {
      content.number = value->data.uint16;
    }
  }
  TakeBack(data)->Give(std::move(content));
}

// Runs a call that may never return on a thread of its own.
absl::StatusOr<std::optional<Answer::Content>> RunBy(
    std::function<pmix::Status()> call, Deadline deadline) {
  auto answer = std::make_shared<Answer>();
  std::thread thread;
  RETURN_IF_ERROR(platform::StartThread(thread, "that waits for libpmix",
                                        [answer, call = std::move(call)] {
                                          answer->Give({call(), 0, 0, {}});
                                        }));
  thread.detach();
  return answer->WaitFor(deadline);
}

absl::StatusCode CodeOf(pmix::Status status) {
  switch (status) {
    case pmix::kErrTimeout:
      return absl::StatusCode::kDeadlineExceeded;
    case pmix::kErrUnreachable:
    case pmix::kErrCommFailure:
    case pmix::kErrLostConnection:
      return absl::StatusCode::kUnavailable;
    case pmix::kErrBadParameter:
      return absl::StatusCode::kInvalidArgument;
    case pmix::kErrOutOfResource:
    case pmix::kErrNoMemory:
      return absl::StatusCode::kResourceExhausted;
    case pmix::kErrNotFound:
      return absl::StatusCode::kNotFound;
    case pmix::kErrNotSupported:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

template <typename Function>
void Resolve(const platform::Library& library, const char* name,
             Function*& entry, std::string* missing) {
  entry = reinterpret_cast<Function*>(library.Find(name));
  if (entry == nullptr) {
    absl::StrAppend(missing, missing->empty() ? "" : ", ", name);
  }
}

absl::StatusOr<pmix::Table> ReadTable(const platform::Library& library) {
  pmix::Table table{};
  std::string missing;
  Resolve(library, "PMIx_Init", table.PMIx_Init, &missing);
  Resolve(library, "PMIx_Finalize", table.PMIx_Finalize, &missing);
  Resolve(library, "PMIx_Put", table.PMIx_Put, &missing);
  Resolve(library, "PMIx_Commit", table.PMIx_Commit, &missing);
  Resolve(library, "PMIx_Fence_nb", table.PMIx_Fence_nb, &missing);
  Resolve(library, "PMIx_Get_nb", table.PMIx_Get_nb, &missing);
  Resolve(library, "PMIx_Error_string", table.PMIx_Error_string, &missing);
  Resolve(library, "PMIx_Get_version", table.PMIx_Get_version, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library.path(), " is no PMIx 3 or newer: it lacks ",
                     missing, ". Install libpmix2 of PMIx 3 or newer."));
  }
  return table;
}

absl::Status Overdue(absl::string_view call) {
  return absl::DeadlineExceededError(
      absl::StrCat(call, " did not end by the deadline"));
}

}  // namespace

// What this process has of its job.
struct PmixExchange::State {
  std::string library;  // As PmixOptions named it.
  std::string origin;
  pmix::Table table{};
  pmix::Proc self{};
  std::string job;
  int size = 0;  // 0: not known yet.
  int local_rank = 0;
  int exchanges = 0;  // Made so far.
  std::atomic<bool> fence_failed{false};

  // Asks for what is not known yet of the job.
  absl::Status Learn(Deadline deadline) {
    if (size != 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Answer::Content ranks,
                     Ask(pmix::kRankWildcard, pmix::kJobSize, deadline));
    ASSIGN_OR_RETURN(const Answer::Content local,
                     Ask(self.rank, pmix::kLocalRank, deadline));
    if (ranks.type != pmix::kUint32 || ranks.number > INT32_MAX ||
        self.rank >= ranks.number || local.type != pmix::kUint16) {
      return absl::InternalError(
          absl::StrCat("the PMIx server says that this is rank ", self.rank,
                       " of ", ranks.number, ", local rank ", local.number));
    }
    job = self.name_space;
    local_rank = static_cast<int>(local.number);
    size = static_cast<int>(ranks.number);
    return absl::OkStatus();
  }

  absl::Status Error(pmix::Status status, absl::string_view call) const {
    if (status == pmix::kSuccess) return absl::OkStatus();
    return absl::Status(
        CodeOf(status),
        absl::StrCat(call, " answered ", table.PMIx_Error_string(status), " (",
                     status, ")"));
  }

  // What a call that was run on a thread of its own answered.
  absl::Status Read(
      const absl::StatusOr<std::optional<Answer::Content>>& content,
      absl::string_view call) const {
    if (!content.ok()) return platform::Annotate(content.status(), call);
    return content->has_value() ? Error((*content)->status, call)
                                : Overdue(call);
  }

  absl::StatusOr<Answer::Content> Ask(pmix::Rank rank, const std::string& key,
                                      Deadline deadline) const {
    const std::string call = absl::StrCat(
        "PMIx_Get(",
        rank == pmix::kRankWildcard ? "job" : absl::StrCat("rank ", rank), ", ",
        key, ")");
    auto answer = std::make_shared<Answer>();
    answer->process = self;
    answer->process.rank = rank;
    answer->key = key;
    void* held = Hold(answer);
    const pmix::Status asked = table.PMIx_Get_nb(
        &answer->process, answer->key.c_str(), nullptr, 0, &GotValue, held);
    if (asked != pmix::kSuccess) {
      TakeBack(held);
      return Error(asked, call);
    }
    std::optional<Answer::Content> content = answer->WaitFor(deadline);
    if (!content.has_value()) return Overdue(call);
    RETURN_IF_ERROR(Error(content->status, call));
    return *std::move(content);
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
      if (deadline.Passed()) return Overdue("PMIx_Init() of another thread");
      turn_.WaitFor(mutex_, deadline.Slice());
    }
    taken_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<PmixExchange>> ConnectInTurn(
      const PmixOptions& options, Deadline deadline) {
    if (state_ == nullptr) {
      ASSIGN_OR_RETURN(state_, Join(options, deadline));
      process_ = platform::CurrentProcessId();
      // After libpmix was opened, hence before what it does at exit itself.
      std::atexit([] { Get().Leave(); });
    }
    if (process_ != platform::CurrentProcessId()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "process ", process_,
          " is the rank, and this one is forked from "
          "it: exchange in the rank, or start programs of their own"));
    }
    if (state_->library != options.library) {
      return absl::FailedPreconditionError(
          absl::StrCat("this process has joined its job by ", state_->origin,
                       ", and cannot by ", options.library, " too"));
    }
    RETURN_IF_ERROR(state_->Learn(deadline));
    return std::unique_ptr<PmixExchange>(
        new PmixExchange(state_, state_->exchanges++));
  }

  static absl::StatusOr<std::shared_ptr<State>> Join(const PmixOptions& options,
                                                     Deadline deadline) {
    absl::StatusOr<platform::Library> library =
        options.library.empty() ? platform::Library::OpenSystem(kLibrary)
                                : platform::Library::OpenPath(options.library);
    if (!library.ok()) {
      return platform::Annotate(
          library.status(),
          "a launcher offers PMIx, and its client library "
          "cannot be opened",
          "Install it on every node (Debian and Ubuntu: libpmix2; Fedora: "
          "pmix), or name its file in PmixOptions::library");
    }
    auto state = std::make_shared<State>();
    ASSIGN_OR_RETURN(state->table, ReadTable(*library));
    state->library = options.library;
    state->origin = library->path();
    const absl::Status joined = state->Read(RunBy(
                                                [state] {
                                                  return state->table.PMIx_Init(
                                                      &state->self, nullptr, 0);
                                                },
                                                deadline),
                                            "PMIx_Init()");
    if (!joined.ok()) {
      return platform::Annotate(
          joined, "",
          "The launcher's server must be reachable from this process (in a "
          "container: its network and its temporary folder), and libpmix must "
          "be of a version that it speaks");
    }
    return state;
  }

  // In at most five seconds. A launcher takes a rank that ends without it for
  // one that failed; that it failed can be told to nobody.
  void Leave() {
    if (process_ != platform::CurrentProcessId()) return;
    state_
        ->Read(RunBy(
                   [state = state_] {
                     return state->table.PMIx_Finalize(nullptr, 0);
                   },
                   Deadline::In(absl::Seconds(5))),
               "PMIx_Finalize()")
        .IgnoreError();
  }

  platform::Mutex mutex_;
  platform::CondVar turn_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<State> state_;  // Of whoever has the turn; set once.
  std::int64_t process_ = 0;
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

const std::string& PmixExchange::job() const { return state_->job; }
int PmixExchange::rank() const { return static_cast<int>(state_->self.rank); }
int PmixExchange::size() const { return state_->size; }
int PmixExchange::local_rank() const { return state_->local_rank; }

std::string PmixExchange::Describe() const {
  // "OpenPMIx 4.2.2 (PMIx Standard: 4.2, ...)".
  const absl::string_view version = state_->table.PMIx_Get_version();
  return absl::StrCat(version.substr(0, version.find(" (")), " (",
                      state_->origin, ")");
}

absl::Status PmixExchange::Put(const std::string& key,
                               absl::Span<const std::uint8_t> value,
                               Deadline deadline) {
  // PMIx takes a pointer to mutable bytes, and may read them after we left.
  auto copy = std::make_shared<std::string>(value.begin(), value.end());
  return state_->Read(
      RunBy(
          [state = state_, copy, key] {
            pmix::Value bytes{};
            bytes.type = pmix::kByteObject;
            bytes.data.bytes = {copy->data(), copy->size()};
            const pmix::Status put =
                state->table.PMIx_Put(pmix::kGlobal, key.c_str(), &bytes);
            return put == pmix::kSuccess ? state->table.PMIx_Commit() : put;
          },
          deadline),
      absl::StrCat("PMIx_Put(", key, ", ", value.size(), " bytes)"));
}

absl::Status PmixExchange::Fence(Deadline deadline) {
  constexpr char kCall[] = "PMIx_Fence()";
  if (state_->fence_failed) {
    // The one that failed may still be under way in the server.
    return absl::FailedPreconditionError(
        "an earlier PMIx_Fence() of this job failed, so no other can be relied "
        "on. Start the job again.");
  }
  auto answer = std::make_shared<Answer>();
  std::strncpy(answer->how.key, pmix::kCollectData, pmix::kMaxKey);
  answer->how.value.type = pmix::kBool;
  answer->how.value.data.flag = true;
  void* held = Hold(answer);
  const pmix::Status asked =
      state_->table.PMIx_Fence_nb(nullptr, 0, &answer->how, 1, &Done, held);
  absl::Status status;
  if (asked != pmix::kSuccess) {
    TakeBack(held);  // It is not called then.
    status = asked == pmix::kOperationSucceeded ? absl::OkStatus()
                                                : state_->Error(asked, kCall);
  } else {
    const std::optional<Answer::Content> content = answer->WaitFor(deadline);
    status = content.has_value() ? state_->Error(content->status, kCall)
                                 : Overdue(kCall);
  }
  state_->fence_failed = !status.ok();
  return status;
}

absl::StatusOr<Bytes> PmixExchange::Get(int rank, const std::string& key,
                                        Deadline deadline) {
  absl::StatusOr<Answer::Content> content =
      state_->Ask(static_cast<pmix::Rank>(rank), key, deadline);
  if (!content.ok()) return content.status();
  if (content->type != pmix::kByteObject) {
    return absl::DataLossError(absl::StrCat("PMIx_Get(rank ", rank, ", ", key,
                                            ") answered a value of type ",
                                            content->type, "; expected bytes"));
  }
  return std::move(content->bytes);
}

}  // namespace vmm::fabric
