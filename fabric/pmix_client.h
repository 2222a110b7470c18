// libpmix as one process uses it, opened at run time. Every wait ends at its
// deadline, also where libpmix itself would not return: what it still does then
// goes on in the background.
//
// Internal to fabric/pmix.cc.
#ifndef VMMSHARE_FABRIC_PMIX_CLIENT_H_
#define VMMSHARE_FABRIC_PMIX_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fabric/exchange.h"
#include "fabric/pmix_abi.h"
#include "fabric/pmix_answer.h"
#include "platform/os/deadline.h"

namespace vmm::fabric {

// A process joins its job once; this is what it has then, until it exits.
// Thread-compatible.
class PmixClient {
 public:
  using Value = std::pair<std::string, Bytes>;  // Under a key.

  // Opens `library`, or the system's if that is empty, and joins the job.
  //   FAILED_PRECONDITION  a libpmix without a needed entry point
  //   NOT_FOUND            libpmix is not installed
  //   else                 as PMIx_Init answers
  static absl::StatusOr<std::shared_ptr<PmixClient>> Join(
      const std::string& library, Deadline deadline);

  // Asks for what is not known yet of the job.
  absl::Status Learn(Deadline deadline);
  // Of the job, once it is learned.
  const std::string& job() const { return job_; }
  int rank() const { return static_cast<int>(self_.rank); }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  // "OpenPMIx 4.2.2 (/usr/lib/...)".
  std::string Describe() const;
  const std::string& origin() const { return origin_; }
  // Whether a key may be put again, with a value of the same size, and peers
  // are given the new one after the next fence. OpenPMIx 5.0.7 gives them the
  // one that they had; 4.2.2 does as wanted; others were not tried.
  bool ShowsWhatWasPutAgain() const;
  // Whether a server of this version, should the launcher's be of it, can be asked to
  // end a fence in time. 4.2.2 can. From 4.2.3 to 5.0.11 all ranks of a host but one
  // learn that the fence succeeded (_mdxcbfunc() in its src/server/pmix_server.c; seen
  // with 5.0.1); 4.0 does not stop its clock when it hands the fence to other hosts.
  // Others were not tried.
  bool TellsAllOfAFailedFence() const;

  // All or none: peers see them together.
  absl::Status Put(std::vector<Value> values, Deadline deadline);
  // Ends when all ranks have called it, with what all have put. Calls `late`
  // when that has not come within `soon`. A server that TellsAllOfAFailedFence() is
  // told how much time is left, in whole seconds, if it is two or more: the fence
  // then ends for all ranks of a host when the time of one is over, counted from the
  // first call, and so up to a second before the deadline.
  absl::Status Fence(absl::Duration soon, const std::function<void()>& late,
                     Deadline deadline);
  absl::StatusOr<Bytes> Get(int rank, const std::string& key,
                            Deadline deadline) const;
  // The process leaves its job, or the time is over.
  void Leave(Deadline deadline) const;

 private:
  absl::Status Error(pmix::Status status, absl::string_view call) const;
  // Runs a call that may never return on a thread of its own.
  absl::Status Run(absl::string_view call, std::function<pmix::Status()> run,
                   Deadline deadline) const;
  absl::StatusOr<PmixReply> Ask(pmix::Rank rank, const std::string& key,
                                Deadline deadline) const;

  std::string origin_;
  pmix::Table table_{};
  pmix::Proc self_{};
  std::string job_;
  int size_ = 0;  // 0: not known yet.
  int local_rank_ = 0;
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_PMIX_CLIENT_H_
