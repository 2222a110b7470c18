// RunInFork(): what a child of fork() does with what its parent had.
#ifndef VMMSHARE_TESTS_SUPPORT_FORK_H_
#define VMMSHARE_TESTS_SUPPORT_FORK_H_

#include <functional>

namespace vmm::testing {

// Whether RunInFork() can be called here.
bool MayFork();
// Runs `in_child` in a fork and answers its exit status: what it returned, or
// 128 + the signal that ended it, which is SIGALRM if it hangs. It should
// allocate little: AddressSanitizer's allocator (GCC 12) stays locked for ever
// in the child of a process that was allocating on another thread.
int RunInFork(const std::function<int()>& in_child);

// Runs `in_child` in a fork, after which that ends, and goes on at once. What it
// needs must be there still. Does nothing where there is no fork.
void RunApart(const std::function<void()>& in_child);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_FORK_H_
