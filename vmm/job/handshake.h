// Handshake: the ranks of a job find out who reaches whose GPU memory, and how.
//
//   HandshakeResult met = Handshake(device, exchange, {}, deadline);
//   if (!met.status.ok()) return met.status;        // a rank is missing
//   absl::Status all = met.matrix.AllReach();       // or who does not, and why
//
// A device attribute says yes where calls say no, and a try within one process
// says nothing of another node. So every rank offers a little memory, and every
// other one imports and maps it, reads what its owner wrote, writes, and reads
// that back: on one host with the system's own handles, between hosts with
// fabric handles.
#ifndef VMMSHARE_VMM_JOB_HANDSHAKE_H_
#define VMMSHARE_VMM_JOB_HANDSHAKE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/exchange.h"
#include "fabric/job_matrix.h"
#include "platform/os/deadline.h"
#include "vmm/job/offer.h"
#include "vmm/memory/device.h"

namespace vmm::job {

struct HandshakeOptions {
  JobOptions job = {};
  // Also tries the kinds after the first that works.
  bool try_all_kinds = false;
};

struct HandshakeResult {
  // As far as it is known. A rank that did not answer has a Status in its
  // place.
  fabric::JobMatrix matrix;
  // OK when every rank answered. The matrix is then the same on every rank
  // that was told OK. Otherwise it names the ranks that are missing, or that
  // speak another version (FAILED_PRECONDITION).
  absl::Status status;
};

// Collective: every rank calls it. `device` is the rank's GPU, whose primary
// context is used; a rank without one (no driver, say) passes the reason, which
// all ranks then learn. Takes two rounds of the exchange, and 2 MiB of the
// device while it runs. Returns by `deadline`: half of the time is for all
// ranks to come, and one that hangs takes no more of the rest than its share.
HandshakeResult Handshake(const absl::StatusOr<Device>& device,
                          fabric::Exchange& exchange,
                          const HandshakeOptions& options, Deadline deadline);

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_HANDSHAKE_H_
