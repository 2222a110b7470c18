// Whether this process is a forked child of the one that made an object.
#ifndef VMMSHARE_VMM_PYTHON_CORE_FORKED_H_
#define VMMSHARE_VMM_PYTHON_CORE_FORKED_H_

#include <cstdint>

namespace vmm::python {

// What is made in this process. It keeps which one that is.
class MadeHere {
 public:
  MadeHere();
  bool is_still_here() const;
  // FailedPrecondition in a forked child, where what is the parent's must not be
  // used: the C interface would answer with empty values where it has no error.
  void CheckStillHere() const;

 private:
  std::uint64_t forks_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_FORKED_H_
