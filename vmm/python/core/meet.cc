// meet(): a signal to many fences and a wait for many.
#include <mutex>
#include <set>
#include <vector>

#include "vmm/python/core/handles.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/uint64.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// A fence that somebody else may let go of meanwhile.
struct Kept {
  nb::object object;  // Has the mutex.
  std::shared_ptr<vmmshare_fence> handle;
  std::mutex* signalling;
};

// Of a generator nobody else may have them.
std::vector<Kept> Keep(const nb::iterable& fences) {
  std::vector<Kept> kept;
  for (const nb::handle fence : fences) {
    const auto& one = nb::cast<const Fence&>(fence);
    kept.push_back({nb::borrow(fence), one.handle.shared(), &one.signalling});
  }
  return kept;
}

std::vector<vmmshare_fence*> HandlesOf(const std::vector<Kept>& fences) {
  std::vector<vmmshare_fence*> handles;
  handles.reserve(fences.size());
  for (const Kept& fence : fences) handles.push_back(fence.handle.get());
  return handles;
}

// One after the other in the order of their addresses, so that two threads do not
// wait for each other.
std::vector<std::unique_lock<std::mutex>> InTurn(
    const std::vector<Kept>& signals) {
  std::set<std::mutex*> mutexes;
  for (const Kept& fence : signals) mutexes.insert(fence.signalling);
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(mutexes.size());
  for (std::mutex* mutex : mutexes) locks.emplace_back(*mutex);
  return locks;
}

void Meet(const nb::iterable& signals, const nb::iterable& waits,
          std::intptr_t stream, UInt64<"value"> value) {
  const std::vector<Kept> to = Keep(signals);
  const std::vector<Kept> from = Keep(waits);
  const std::vector<vmmshare_fence*> signalled = HandlesOf(to);
  const std::vector<vmmshare_fence*> awaited = HandlesOf(from);
  void* const on = StreamOf(stream);
  MustWithoutGil([&](vmmshare_error** error) {
    const auto turn = InTurn(to);
    return vmmshare_fence_meet(signalled.data(), signalled.size(),
                               awaited.data(), awaited.size(), on, value,
                               error);
  });
}

}  // namespace

void DefineMeet(nb::module_& module) {
  module.def("meet", &Meet, nb::arg("signals"), nb::arg("waits"),
             nb::arg("stream"), nb::arg("value"),
             "Signals `value` to each of `signals` once what is on `stream` is "
             "done, and "
             "has later work\nwait for `value` from each of `waits`: with a "
             "fence for each "
             "other rank a barrier of their\nstreams. One kernel where all of "
             "`waits` are of "
             "arrays with kernels, and of 127 fences at\nmost.");
}

}  // namespace vmm::python
