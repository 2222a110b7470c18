// What the kernel that the tests run on can do.
#ifndef VMMSHARE_TESTS_SUPPORT_KERNEL_H_
#define VMMSHARE_TESTS_SUPPORT_KERNEL_H_

namespace vmm::testing {

// Whether a message brings a reference to the process that sent it: Linux from
// 6.5 on, and Windows, where a pipe knows its two processes.
bool KernelNamesSenders();

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_KERNEL_H_
