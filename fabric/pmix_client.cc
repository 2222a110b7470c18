#include "fabric/pmix_client.h"

#include <climits>
#include <cstring>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fabric/pmix_answer.h"
#include "fabric/pmix_table.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/library.h"
#include "platform/os/start_thread.h"

namespace vmm::fabric {
namespace {

constexpr char kLibrary[] = "libpmix.so.2";

// Where `info` holds what it says of `key`.
decltype(pmix::Value::data)& Fill(pmix::Info& info, const char* key,
                                  std::uint16_t type) {
  std::strncpy(info.key, key, pmix::kMaxKey);
  info.value.type = type;
  return info.value.data;
}

// What is given to a server that counts them, of `left`; 0 where nothing is: the
// fraction of a second that it leaves out would be much of the time.
int WholeSeconds(absl::Duration left) {
  constexpr absl::Duration kFew = absl::Seconds(2);
  if (left < kFew || left >= absl::Seconds(INT_MAX)) return 0;
  return static_cast<int>(absl::ToInt64Seconds(left));
}

absl::Status Overdue(absl::string_view call) {
  return absl::DeadlineExceededError(
      absl::StrCat(call, " did not end by the deadline"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<PmixClient>> PmixClient::Join(
    const std::string& name, Deadline deadline) {
  absl::StatusOr<platform::Library> library =
      name.empty() ? platform::Library::OpenSystem(kLibrary)
                   : platform::Library::OpenPath(name);
  if (!library.ok()) {
    return platform::Annotate(
        library.status(),
        "a launcher offers PMIx, and its client library cannot be opened",
        "Install it on every node (Debian and Ubuntu: libpmix2; Fedora: "
        "pmix), or name its file in PmixOptions::library");
  }
  auto client = std::make_shared<PmixClient>();
  ASSIGN_OR_RETURN(client->table_, pmix::ReadTable(*library));
  client->origin_ = library->path();
  const absl::Status joined = client->Run(
      "PMIx_Init()",
      [client] { return client->table_.PMIx_Init(&client->self_, nullptr, 0); },
      deadline);
  if (joined.ok()) return client;
  return platform::Annotate(
      joined, "",
      "The launcher's server must be reachable from this process (in a "
      "container: its network and its temporary folder), and libpmix must "
      "be of a version that it speaks");
}

std::string PmixClient::Describe() const {
  // "OpenPMIx 4.2.2 (PMIx Standard: 4.2, ...)".
  const absl::string_view version = table_.PMIx_Get_version();
  return absl::StrCat(version.substr(0, version.find(" (")), " (", origin_,
                      ")");
}

bool PmixClient::ShowsWhatWasPutAgain() const {
  return absl::StartsWith(table_.PMIx_Get_version(), "OpenPMIx 4.2.");
}

bool PmixClient::TellsAllOfAFailedFence() const {
  return absl::StartsWith(table_.PMIx_Get_version(), "OpenPMIx 4.2.2");
}

absl::Status PmixClient::Learn(Deadline deadline) {
  if (size_ != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const PmixReply ranks,
                   Ask(pmix::kRankWildcard, pmix::kJobSize, deadline));
  const absl::StatusOr<PmixReply> local =
      Ask(self_.rank, pmix::kLocalRank, deadline);
  if (absl::IsNotFound(local.status())) {
    // What a server knows of a rank goes with the first process that leaves as it.
    return absl::FailedPreconditionError(absl::StrCat(
        local.status().message(), ": another process has joined as rank ",
        self_.rank,
        ", or has joined and left. The process that the launcher started "
        "joins, or one that it starts, and no other: workers of a rank need an "
        "exchange of their own (CallbackExchange)."));
  }
  RETURN_IF_ERROR(local.status());
  if (ranks.type != pmix::kUint32 || ranks.number > INT32_MAX ||
      self_.rank >= ranks.number || local->type != pmix::kUint16) {
    return absl::InternalError(
        absl::StrCat("the PMIx server says that this is rank ", self_.rank,
                     " of ", ranks.number, ", local rank ", local->number));
  }
  job_ = self_.name_space;
  local_rank_ = static_cast<int>(local->number);
  size_ = static_cast<int>(ranks.number);
  return absl::OkStatus();
}

absl::Status PmixClient::Put(std::vector<Value> values, Deadline deadline) {
  const std::string call = absl::StrCat(
      "PMIx_Put(", values.empty() ? "" : values.front().first, ")");
  // PMIx takes a pointer to mutable bytes, and may read them after we left.
  auto held = std::make_shared<std::vector<Value>>(std::move(values));
  return Run(
      call,
      [table = table_, held] {
        for (auto& [key, bytes] : *held) {
          pmix::Value value{};
          value.type = pmix::kByteObject;
          value.data.bytes = {reinterpret_cast<char*>(bytes.data()),
                              bytes.size()};
          const pmix::Status put =
              table.PMIx_Put(pmix::kGlobal, key.c_str(), &value);
          if (put != pmix::kSuccess) return put;
        }
        return table.PMIx_Commit();
      },
      deadline);
}

absl::Status PmixClient::Fence(absl::Duration soon,
                               const std::function<void()>& late,
                               Deadline deadline) {
  constexpr char kCall[] = "PMIx_Fence()";
  auto answer = std::make_shared<PmixAnswer>();
  Fill(answer->how[0], pmix::kCollectData, pmix::kBool).flag = true;
  // A process that leaves while the server waits for others makes Open MPI 4.1.4's
  // mpirun hang or crash at the job's end, in one job of three (libpmix 4.2.2). So the
  // server is the first to give up, where whole seconds, all it counts, allow it.
  const int seconds =
      TellsAllOfAFailedFence() ? WholeSeconds(deadline.Left()) : 0;
  Fill(answer->how[1], pmix::kTimeout, pmix::kInt).integer = seconds;
  void* held = PmixAnswer::Hold(answer);
  const pmix::Status asked =
      table_.PMIx_Fence_nb(nullptr, 0, answer->how.data(), seconds == 0 ? 1 : 2,
                           &PmixAnswer::Done, held);
  if (asked != pmix::kSuccess) {
    PmixAnswer::TakeBack(held);  // It is not called then.
    return asked == pmix::kOperationSucceeded ? absl::OkStatus()
                                              : Error(asked, kCall);
  }
  std::optional<PmixReply> reply = answer->WaitFor(Deadline::In(soon));
  if (!reply.has_value()) {
    late();
    reply = answer->WaitFor(deadline);
  }
  if (!reply.has_value()) return Overdue(kCall);
  const absl::Status status = Error(reply->status, kCall);
  return absl::IsDeadlineExceeded(status)
             ? platform::Annotate(status, Overdue(kCall).message())
             : status;
}

absl::StatusOr<Bytes> PmixClient::Get(int rank, const std::string& key,
                                      Deadline deadline) const {
  ASSIGN_OR_RETURN(PmixReply reply,
                   Ask(static_cast<pmix::Rank>(rank), key, deadline));
  if (reply.type == pmix::kByteObject) return std::move(reply.bytes);
  return absl::DataLossError(absl::StrCat("PMIx_Get(rank ", rank, ", ", key,
                                          ") answered a value of type ",
                                          reply.type, "; expected bytes"));
}

void PmixClient::Leave(Deadline deadline) const {
  Run(
      "PMIx_Finalize()",
      [table = table_] { return table.PMIx_Finalize(nullptr, 0); }, deadline)
      .IgnoreError();
}

absl::Status PmixClient::Error(pmix::Status status,
                               absl::string_view call) const {
  if (status == pmix::kSuccess) return absl::OkStatus();
  return absl::Status(
      pmix::CodeOf(status),
      absl::StrCat(call, " answered ", table_.PMIx_Error_string(status), " (",
                   status, ")"));
}

absl::Status PmixClient::Run(absl::string_view call,
                             std::function<pmix::Status()> run,
                             Deadline deadline) const {
  auto answer = std::make_shared<PmixAnswer>();
  std::thread thread;
  absl::Status started = platform::StartThread(
      thread, "vmmshare-pmix", "that waits for libpmix",
      [answer, run = std::move(run)] { answer->Give({.status = run()}); });
  if (!started.ok()) return platform::Annotate(started, call);
  thread.detach();
  const std::optional<PmixReply> reply = answer->WaitFor(deadline);
  return reply.has_value() ? Error(reply->status, call) : Overdue(call);
}

absl::StatusOr<PmixReply> PmixClient::Ask(pmix::Rank rank,
                                          const std::string& key,
                                          Deadline deadline) const {
  const std::string call = absl::StrCat(
      "PMIx_Get(",
      rank == pmix::kRankWildcard ? "job" : absl::StrCat("rank ", rank), ", ",
      key, ")");
  auto answer = std::make_shared<PmixAnswer>();
  answer->process = self_;
  answer->process.rank = rank;
  answer->key = key;
  void* held = PmixAnswer::Hold(answer);
  const pmix::Status asked =
      table_.PMIx_Get_nb(&answer->process, answer->key.c_str(), nullptr, 0,
                         &PmixAnswer::GotValue, held);
  if (asked != pmix::kSuccess) {
    PmixAnswer::TakeBack(held);
    return Error(asked, call);
  }
  std::optional<PmixReply> reply = answer->WaitFor(deadline);
  if (!reply.has_value()) return Overdue(call);
  RETURN_IF_ERROR(Error(reply->status, call));
  return *std::move(reply);
}

}  // namespace vmm::fabric
