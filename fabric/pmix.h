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
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fabric/exchange.h"

namespace vmm::fabric {

struct PmixOptions {
  // The absolute path of libpmix. Empty: the system's libpmix.so.2.
  std::string library = {};
};

// Whether a launcher has started this process and offers PMIx to it.
bool LaunchedWithPmix();

// Every wait ends at its deadline, also where libpmix itself would not return:
// what it still does then goes on in the background.
class PmixExchange final : public Exchange {
 public:
  // Joins the job that this process was launched in.
  //   FAILED_PRECONDITION  no launcher offers PMIx; a libpmix without a needed
  //                        entry point
  //   NOT_FOUND            libpmix is not installed
  //   DEADLINE_EXCEEDED    the launcher's server does not answer
  //   else                 as PMIx_Init answers
  static absl::StatusOr<std::unique_ptr<PmixExchange>> Connect(
      const PmixOptions& options, absl::Time deadline);
  // Leaves the job (PMIx_Finalize), in at most five seconds.
  ~PmixExchange() override;

  const std::string& job() const override;
  int rank() const override;
  int size() const override;
  // The number of this rank among those of its node, from 0: which GPU is its.
  int local_rank() const;
  // "OpenPMIx 4.2.2 (/usr/lib/...)".
  std::string Describe() const;

  absl::Status Put(const std::string& key, absl::Span<const std::uint8_t> value,
                   absl::Time deadline) override;
  absl::Status Fence(absl::Time deadline) override;
  absl::StatusOr<Bytes> Get(int rank, const std::string& key,
                            absl::Time deadline) override;

 private:
  struct State;
  explicit PmixExchange(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
  bool fence_failed_ = false;
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_PMIX_H_
