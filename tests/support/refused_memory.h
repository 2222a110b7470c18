// Memory of the host that a thread is refused: whoever links
// vmmshare_test_refused_memory has an operator new that does as `refusal` says.
#ifndef VMMSHARE_TESTS_SUPPORT_REFUSED_MEMORY_H_
#define VMMSHARE_TESTS_SUPPORT_REFUSED_MEMORY_H_

namespace vmm::testing {

// Of a thread's requests for memory.
struct Refusal {
  long granted_first = -1;  // So many are; below 0 all.
  bool lasts = false;       // Whether all that follow are refused, or one is.
  bool happened = false;
};
extern constinit thread_local Refusal refusal;

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_REFUSED_MEMORY_H_
