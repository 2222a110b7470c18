// What the functions that other libraries call as their allocator have in
// common: they cannot say why they fail.
#ifndef VMMSHARE_VMM_C_INTERNAL_HOOK_H_
#define VMMSHARE_VMM_C_INTERNAL_HOOK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "vmm/memory/device.h"

namespace vmm::c {

// Runs `body`, and remembers why it failed for vmmshare_hooks_last_error().
// `is_of_parent_alone`: whether all that it would work on is a parent's, of which
// this is a forked child. Then it does not run; that is remembered, without a lock
// and without memory.
void Hook(bool is_of_parent_alone, absl::FunctionRef<absl::Status()> body);

// INVALID_ARGUMENT unless `own`, which the program's `what` is of, is number `device`.
absl::Status CheckDevice(absl::string_view what, const Device& own,
                         std::int32_t device);

}  // namespace vmm::c

#endif  // VMMSHARE_VMM_C_INTERNAL_HOOK_H_
