// A barrier for the processes of a job: none goes on before all have come.
//
//   // Rank 0, connected to each of the others:
//   auto barrier = Barrier::Host(fences, served.ticket(), std::move(channels),
//                                deadline);
//   // The others:
//   auto barrier = Barrier::Join(device, std::move(channel), deadline);
//   // Each, as often as it likes:
//   absl::Status met = (*barrier)->Meet(stream);      // the streams meet
//   absl::Status met = (*barrier)->MeetOnHost(deadline);   // the hosts do
//
// Each member has a fence (fence.h), whose value is the number of the round
// that it has arrived at. So a stream that has passed round r sees what was on
// every member's stream before that member arrived at r.
//
// A member that is killed is noticed by all of them, on a thread of the
// barrier, some 60 ms later (measured on H100: that is when its end can be
// confirmed). Then the barrier is broken: every call returns UNAVAILABLE and
// which rank it was, and streams that wait are let go. If it had forked, they
// are once nobody has its GPU context any more (docs/lifetime.md).
//
// The others learn of each other by rank 0, also when that has left: its process
// watches until all have left or ended. Should the process end before, nobody
// notices what becomes of the others. So each of them for which a round that it
// came to is not complete then takes the barrier for broken: its calls return
// UNAVAILABLE and who had not come, and its streams are let go. For the others
// what is complete stays so, status() too, and there is no further round. Once all
// streams have passed rank 0's last round, its process may end at any time.
#ifndef VMMSHARE_VMM_JOB_BARRIER_H_
#define VMMSHARE_VMM_JOB_BARRIER_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {

inline constexpr std::uint32_t kMaxBarrierMembers = 64;

// Thread-compatible, but for status() and LetGo(), which are for any thread. In
// a forked child it does nothing when destroyed, and nothing else may be called
// there.
class Barrier {
 public:
  // Rank 0. `members[i]` is connected to rank i + 1, and the barrier's from now
  // on. `fences` is served under `fences_ticket` (Share::ticket())
  // and must outlive the barrier; this one's fences stay in its memory until the
  // others have gone, too. Returns when all have joined.
  //   INVALID_ARGUMENT  no other member, or kMaxBarrierMembers of them
  //   DEADLINE_EXCEEDED, UNAVAILABLE  the message says which rank did not join
  //   DATA_LOSS         one answered something else
  //   else              as FencePool::New(), or what one answered ("rank 2
  //                     refused:"), or no thread can be had
  // After an error those that had joined learn that rank 0 has left.
  static absl::StatusOr<std::unique_ptr<Barrier>> Host(
      FencePool& fences, const std::string& fences_ticket,
      std::vector<platform::Channel> members, Deadline deadline);

  // Another rank: which one, rank 0 says. `device` is that whose streams meet.
  // Errors as ImportedFencePool::Subscribe(); DATA_LOSS when something else
  // than a barrier was offered.
  static absl::StatusOr<std::unique_ptr<Barrier>> Join(
      const Device& device, platform::Channel host, Deadline deadline,
      const platform::PeerPolicy& owners = {});

  // Leaves. REQUIRES: the GPU has passed what Meet(), Arrive() and Wait() put
  // on streams; synchronise first. A round that this member has not arrived at
  // will be UNAVAILABLE to the others. Waits for none of them: rank 0 watches
  // those that it leaves behind on threads of the barrier, which end after the
  // last of them, or when the process exits. Where the GPU has not passed an
  // arrival all the same, the fences' memory stays until this process ends, and
  // nobody is watched.
  ~Barrier();
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  // Arrives at the next round once all work that is on `stream` now is done,
  // and makes work that is put there later wait until all have arrived.
  // Arrivals come in the order of the calls: one on another stream than the one
  // before makes its stream wait for that.
  //   UNAVAILABLE  a member has ended, or has left without that round; or rank 0
  //                has left, and its process has ended
  //   ABORTED      LetGo() was called, by any member; or a member has ended,
  //                and who it was is not known here yet: see status()
  //   DATA_LOSS    a member wrote nonsense to a fence
  //   FAILED_PRECONDITION  the stream is being captured into a graph, each launch
  //                of which would come to the same round; nothing has changed
  //   else         as the driver reports
  absl::Status Meet(CUstream stream);
  // The two halves. An arrival may be followed by work that needs no other
  // member, and a round may be waited for on several streams. Round 0 is
  // reached from the start.
  absl::Status Arrive(CUstream stream);
  absl::Status Wait(CUstream stream) const;

  // The same for this thread: arrives now, and returns when all have. After
  // Meet() or Arrive() the stream must have passed (FAILED_PRECONDITION).
  // DEADLINE_EXCEEDED names a rank that has not come; WaitOnHost() goes on
  // waiting for the same round.
  absl::Status MeetOnHost(Deadline deadline);
  absl::Status ArriveOnHost();
  absl::Status WaitOnHost(Deadline deadline) const;

  // Ends the barrier for all: streams and threads that wait are let go.
  void LetGo();

  // OK while nobody is known to have ended, but a rank 0 that had left and left
  // no round incomplete that this member came to.
  absl::Status status() const;

  std::uint32_t rank() const;
  std::uint32_t size() const;
  std::uint64_t round() const;  // That this member arrived at last.

 private:
  class State;
  explicit Barrier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_JOB_BARRIER_H_
