// PmixExchange: the exchange that launchers offer.
//
// Open MPI's mpirun, PRRTE's prun and Slurm's srun --mpi=pmix run a PMIx server
// beside each rank. libpmix, its client library, is opened at run time: a
// program that never connects needs none. It is the same library that MPI
// itself uses, and both may be in one process.
#ifndef VMMSHARE_FABRIC_PMIX_H_
#define VMMSHARE_FABRIC_PMIX_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/exchange.h"
#include "platform/os/deadline.h"

namespace vmm::fabric {

struct PmixOptions {
  // The absolute path of libpmix. Empty: the system's libpmix.so.2.
  std::string library = {};
};

// Whether a launcher has started this process and offers PMIx to it.
bool LaunchedWithPmix();

// A process joins its job once: libpmix answers NOT-FOUND to all that is asked
// after it was left and joined again. So the first exchange joins, all of the
// process share what it has, and the process leaves when it exits. Every rank
// makes the same exchanges in the same order; each has keys of its own, but one
// of them is used at a time. Of several processes with one rank's environment
// one joins: the server takes them for one.
//
// Every wait ends at its deadline, also where libpmix itself would not return:
// what it still does then goes on in the background.
class PmixExchange final : public Exchange {
 public:
  // Joins the job that this process was launched in.
  //   FAILED_PRECONDITION  no launcher offers PMIx; a libpmix without a needed
  //                        entry point; this is a forked child of a rank, or
  //                        has joined by another libpmix; another process has
  //                        joined as the same rank, or has left
  //   NOT_FOUND            libpmix is not installed
  //   DEADLINE_EXCEEDED    the launcher's server does not answer
  //   else                 as PMIx_Init answers
  static absl::StatusOr<std::unique_ptr<PmixExchange>> Connect(
      const PmixOptions& options, Deadline deadline);
  const std::string& job() const override;
  int rank() const override;
  int size() const override;
  // The number of this rank among those of its node, from 0: which GPU is its.
  int local_rank() const;
  // "OpenPMIx 4.2.2 (/usr/lib/...)".
  std::string Describe() const;

  absl::Status Put(const std::string& key, absl::Span<const std::uint8_t> value,
                   Deadline deadline) override;
  absl::Status Fence(Deadline deadline) override;
  absl::StatusOr<Bytes> Get(int rank, const std::string& key,
                            Deadline deadline) override;

 private:
  struct State;
  class Session;
  PmixExchange(std::shared_ptr<State> state, int number);

  const std::shared_ptr<State> state_;
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_PMIX_H_
