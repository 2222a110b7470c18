// A connection to a keeper, for those that call it beside Keeper itself.
#ifndef VMMSHARE_VMM_PYTHON_CORE_KEEPER_H_
#define VMMSHARE_VMM_PYTHON_CORE_KEEPER_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>

#include "vmm/c/keeper.h"

namespace vmm::python {

// Runs `call`, which waits on a thread, with the connection of `keeper`, a Keeper:
// one call at a time, and closed where an answer may still come.
void CallKeeper(
    nanobind::handle keeper,
    const std::function<void(const std::shared_ptr<vmmshare_keeper>&)>& call);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_KEEPER_H_
