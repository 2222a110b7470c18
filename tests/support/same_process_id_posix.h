// SameProcessId: a process and its forked children that have one id, as the first
// processes of two containers have.
#ifndef VMMSHARE_TESTS_SUPPORT_SAME_PROCESS_ID_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_SAME_PROCESS_ID_POSIX_H_

namespace vmm::testing {

// While it lives, getpid() in this program, and in the processes that it forks
// meanwhile, answers what it did before. For programs that link
// vmmshare_test_process_id. At most one at a time.
class SameProcessId {
 public:
  SameProcessId();
  ~SameProcessId();
  SameProcessId(const SameProcessId&) = delete;
  SameProcessId& operator=(const SameProcessId&) = delete;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_SAME_PROCESS_ID_POSIX_H_
