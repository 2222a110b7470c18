#include "vmm/python/core/interpreter_end.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "vmm/python/core/forked.h"
#include "vmm/python/core/gil.h"

namespace vmm::python {
namespace {

struct End {
  const MadeHere made;
  std::atomic<bool> has_begun = false;
  std::shared_mutex asking;
};

// Never destroyed: consumers let go after the end of main(). Made by who asks first,
// and not by the import: a child that was forked before that asks as its parent does.
End& TheEnd() {
  static auto* const end = new End;
  return *end;
}

void Begin() {
  End& end = TheEnd();
  end.has_begun = true;
  // In a child of one that asked nobody asks, and the lock may be taken for ever.
  if (!end.made.is_still_here()) return;
  const WithoutGil released;
  const std::lock_guard<std::shared_mutex> nobody(end.asking);
}

}  // namespace

void WatchForTheEnd() {
  nanobind::module_::import_("atexit").attr("register")(
      nanobind::cpp_function(&Begin));
}

bool MayBeGone(void* stream) {
  // CU_STREAM_PER_THREAD is the last of the default ones.
  return TheEnd().has_begun && reinterpret_cast<std::uintptr_t>(stream) > 2;
}

NotYetTheEnd::NotYetTheEnd() : held_(TheEnd().asking, std::defer_lock) {
  // Who comes later asks after no stream that may go, and may come for ever.
  if (!TheEnd().has_begun) held_.lock();
}

}  // namespace vmm::python
