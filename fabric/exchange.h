// Exchange: how the ranks of a job pass plain bytes to each other.
//
// vmmshare has no way of its own to find ranks: whoever started the job has
// one. Two are here: PMIx, which launchers offer (pmix.h), and functions that
// the program supplies (CallbackExchange), for MPI, torch.distributed or any
// store of keys and values.
//
//   absl::StatusOr<std::unique_ptr<PmixExchange>> exchange =
//       PmixExchange::Connect({}, deadline);
//
// What peers put is hostile input to whoever reads it: every record of
// vmmshare's own is parsed by a total function (job_record.h).
#ifndef VMMSHARE_FABRIC_EXCHANGE_H_
#define VMMSHARE_FABRIC_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/os/deadline.h"

namespace vmm::fabric {

using Bytes = std::vector<std::uint8_t>;

// One process's end. Every rank calls the same collective operations in the
// same order. Thread-compatible.
class Exchange {
 public:
  // `scope` goes into all keys: exchanges of one job that share a medium each
  // need another one, the same on all ranks.
  explicit Exchange(std::string scope = {}) : scope_(std::move(scope)) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // The job's name, for messages.
  virtual const std::string& job() const = 0;
  // 0 to size() - 1.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Makes `value` known as this rank's `key`. Others can rely on it once they
  // have returned from the Fence() that follows.
  virtual absl::Status Put(const std::string& key,
                           absl::Span<const std::uint8_t> value,
                           Deadline deadline) = 0;

  // Returns once every rank has called it. DEADLINE_EXCEEDED when some rank has
  // not by `deadline`; UNAVAILABLE and others as the medium answers. After a
  // failure no further Fence() can be relied on.
  virtual absl::Status Fence(Deadline deadline) = 0;

  // What `rank` put as `key` before its last Fence(). After a Fence() that
  // failed: what comes from that rank by `deadline`, if anything does, which is
  // how the missing rank is found; a medium that knows of nothing without a
  // Fence() answers at once. NOT_FOUND or DEADLINE_EXCEEDED when there is
  // nothing.
  virtual absl::StatusOr<Bytes> Get(int rank, const std::string& key,
                                    Deadline deadline) = 0;

  // A key that no earlier call gave: "vmmshare.cards.3", with a scope
  // "vmmshare.SCOPE.cards.3". The same on every rank, since all make the same
  // calls.
  std::string NextKey(absl::string_view what);

 private:
  const std::string scope_;
  int keys_ = 0;
};

// The functions of a CallbackExchange, as Exchange describes them. Each must
// return by its deadline. With MPI: `put` remembers, `fence` is an
// MPI_Iallgatherv tested until the deadline, `get` answers from the result.
struct ExchangeCallbacks {
  std::string job;
  // Of two exchanges over one store at least one needs a scope: see Exchange.
  std::string scope = {};
  int rank = 0;
  int size = 1;
  std::function<absl::Status(const std::string& key,
                             absl::Span<const std::uint8_t> value,
                             absl::Time deadline)>
      put;
  std::function<absl::Status(absl::Time deadline)> fence;
  std::function<absl::StatusOr<Bytes>(int rank, const std::string& key,
                                      absl::Time deadline)>
      get;
};

// Runs on functions of the program.
class CallbackExchange final : public Exchange {
 public:
  // REQUIRES: all functions are there; 0 <= rank < size.
  explicit CallbackExchange(ExchangeCallbacks callbacks);

  const std::string& job() const override { return callbacks_.job; }
  int rank() const override { return callbacks_.rank; }
  int size() const override { return callbacks_.size; }
  absl::Status Put(const std::string& key, absl::Span<const std::uint8_t> value,
                   Deadline deadline) override;
  absl::Status Fence(Deadline deadline) override;
  absl::StatusOr<Bytes> Get(int rank, const std::string& key,
                            Deadline deadline) override;

 private:
  ExchangeCallbacks callbacks_;
};

// What all ranks said in one round.
struct Gathered {
  // By rank: its record, or why there is none.
  std::vector<absl::StatusOr<Bytes>> records;
  // OK when the round is complete; otherwise names the ranks that are missing.
  absl::Status status;
};

// One round: puts `record`, waits for all, and gets every rank's, by
// `deadline`. The last tenth of the time, at most half a second, is kept for
// finding out who is missing. `what` names the record: "card".
Gathered Gather(Exchange& exchange, absl::string_view what,
                absl::Span<const std::uint8_t> record, Deadline deadline);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_EXCHANGE_H_
