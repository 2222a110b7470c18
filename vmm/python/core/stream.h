// Streams, which Python passes as ints.
#ifndef VMMSHARE_VMM_PYTHON_CORE_STREAM_H_
#define VMMSHARE_VMM_PYTHON_CORE_STREAM_H_

#include <cstdint>

namespace vmm::python {

// ValueError for a number that can be no address of a stream, nor is one of
// CUDA's names: a fence's value, say, where the stream was to come.
void* StreamOf(std::intptr_t stream);
// And for CUDA's name of a stream that is another one on each thread.
void* OneStreamOf(std::intptr_t stream);

// CUDA's name of the legacy default stream, which needs no current context.
inline void* LegacyStream() {
  return reinterpret_cast<void*>(std::intptr_t{1});
}
// `stream`; that one where it is null.
inline void* NamedStream(void* stream) {
  return stream == nullptr ? LegacyStream() : stream;
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_STREAM_H_
