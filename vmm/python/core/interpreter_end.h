// The end of the interpreter. It destroys what the program has in an order that
// nobody knows, streams before what went back on them among it, and at a stream that
// was destroyed the driver may end the process. So from then on none is asked after:
// what waits for one stays, until the process ends and the driver takes all of it.
#ifndef VMMSHARE_VMM_PYTHON_CORE_INTERPRETER_END_H_
#define VMMSHARE_VMM_PYTHON_CORE_INTERPRETER_END_H_

#include <shared_mutex>

namespace vmm::python {

// Has the interpreter say when it begins to end, while all streams are there: by
// atexit. Needs the GIL. To be called once, when the module is imported.
void WatchForTheEnd();

// Whether `stream` may be destroyed, for the interpreter ends. A default one never
// is. Does not wait.
bool MayBeGone(void* stream);

// While one lives the interpreter does not begin to end: a stream that is not
// MayBeGone() stays. Waits for nobody.
class NotYetTheEnd {
 public:
  NotYetTheEnd();
  NotYetTheEnd(const NotYetTheEnd&) = delete;
  NotYetTheEnd& operator=(const NotYetTheEnd&) = delete;

 private:
  std::shared_lock<std::shared_mutex> held_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_INTERPRETER_END_H_
