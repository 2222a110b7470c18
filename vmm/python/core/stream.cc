#include "vmm/python/core/stream.h"

#include <nanobind/nanobind.h>

#include <string>

namespace nb = nanobind;

namespace vmm::python {

void* StreamOf(std::intptr_t stream) {
  constexpr std::intptr_t kFirstPage = 4096;
  if (stream >= 0 && (stream <= 2 || stream >= kFirstPage)) {
    return reinterpret_cast<void*>(stream);
  }
  throw nb::value_error(
      ("stream " + std::to_string(stream) +
       " is none: expected a CUstream's address as an int, or 0 or 1 for the "
       "legacy default stream")
          .c_str());
}

void* OneStreamOf(std::intptr_t stream) {
  if (stream != 2) return StreamOf(stream);
  throw nb::value_error(
      "stream 2 is CUDA's per-thread default stream, another one on each "
      "thread, so that memory cannot be given back after what is on it: pass a "
      "stream of your own, or 1, the legacy default stream");
}

}  // namespace vmm::python
