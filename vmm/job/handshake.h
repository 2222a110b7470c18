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

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/exchange.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm::fabric {
class JobMatrix;
}  // namespace vmm::fabric

namespace vmm::job {

// Where ranks of one host meet, and what is looked at to explain a refusal.
struct JobOptions {
  // Where this rank's endpoint listens, and which users may be ranks.
  platform::ListenerOptions listener = {};
  platform::PeerPolicy peers = {};
  // The file of the NVML that is asked for fabric state, an absolute path. Empty:
  // the system's, and none with the host-memory driver.
  std::string nvml = {};
  // A folder in whose /dev and /proc IMEX channels are looked for; "" is the
  // system itself.
  std::string root = {};
};

// What ranks share as by default, the preferred kind first: the system's own
// within a host, fabric handles between hosts.
SharePolicy JobSharing();

struct HandshakeOptions {
  JobOptions job = {};
  // Also tries the kinds after the first that works.
  bool try_all_kinds = false;
};

// Which rank reaches whose memory, how, and why not otherwise, as each found out
// by trying. A value; copies share it. REQUIRES of all ranks named: they are ranks.
class ReachMatrix {
 public:
  // How many ranks there are.
  int size() const;
  // Why nothing is known of `rank`; OK if it answered.
  absl::Status Answered(int rank) const;
  // The kind by which `importer` reaches memory of `owner`, if any.
  std::optional<HandleKind> Chosen(int importer, int owner) const;
  // OK when `importer` reaches it; otherwise why not, kind by kind, with both
  // ranks and devices and what to do.
  absl::Status WhyNot(int importer, int owner) const;
  // OK when every rank reaches every other one's memory; otherwise the first
  // WhyNot(), and how many more there are.
  absl::Status AllReach() const;

  // Internal.
  explicit ReachMatrix(fabric::JobMatrix matrix);
  const fabric::JobMatrix& details() const { return *matrix_; }

 private:
  std::shared_ptr<const fabric::JobMatrix> matrix_;
};

struct HandshakeResult {
  // As far as it is known.
  ReachMatrix matrix;
  // OK when every rank answered. The matrix is then the same on every rank
  // that was told OK. Otherwise it names the ranks that are missing, or that
  // speak another version (FAILED_PRECONDITION).
  absl::Status status;
};

// Collective: every rank calls it. `device` is the rank's GPU, whose primary
// context is used; a rank without one (no driver, say) passes the reason, which
// all ranks then learn. Takes two rounds of the exchange, and 2 MiB of the
// device while it runs. Breaks no capture of a stream: calls of `exchange` on this
// thread too are in relaxed mode. Returns by `deadline`: half of the time is for all
// ranks to come, and one that hangs takes no more of the rest than its share. Later
// by 10 s for each kind of handle that it is the first to try while the device does
// nothing (Device::Probe); by a second where the device does not write and no more
// was left of the time; and copies to the host have no deadline (docs/ordering.md).
// Trial memory that the device has not done with stays for good, 2 MiB at most.
HandshakeResult Handshake(const absl::StatusOr<Device>& device,
                          fabric::Exchange& exchange,
                          const HandshakeOptions& options, Deadline deadline);

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_HANDSHAKE_H_
