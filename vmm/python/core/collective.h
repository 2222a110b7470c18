// Calls in which every rank of a job takes part, by an exchange of the program's:
// see vmmshare.job.
#ifndef VMMSHARE_VMM_PYTHON_CORE_COLLECTIVE_H_
#define VMMSHARE_VMM_PYTHON_CORE_COLLECTIVE_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>

#include "vmm/c/symmetric.h"
#include "vmm/python/core/wait.h"

namespace vmm::python {

struct Ranks {
  int rank;
  int size;
};
Ranks RanksOf(nanobind::handle exchange);

// Runs `call(exchange, outcome)`, in which every rank takes part and which refers
// only to what it owns; what `exchange` raised goes before what that led to. The
// exchange is called on this thread: MPI, say, may allow no other.
std::shared_ptr<void> RunCollective(
    nanobind::handle exchange, Ranks ranks, const std::string& scope,
    std::function<void(const vmmshare_exchange&, Outcome&)> call);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_COLLECTIVE_H_
