// Numbers in bytes that are sent: little-endian, on every machine.
#ifndef VMMSHARE_VMM_PYTHON_CORE_BYTES_H_
#define VMMSHARE_VMM_PYTHON_CORE_BYTES_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace vmm::python {

// Writes `value` over sizeof(T) bytes.
template <typename T>
void PutAt(char* to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<char>(value >> (8 * i));
  }
}
template <typename T>
void Put(std::string* out, T value) {
  char bytes[sizeof(T)];
  PutAt(bytes, value);
  out->append(bytes, sizeof(T));
}

// REQUIRES: `bytes` has as many.
template <typename T>
T Take(std::string_view* bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>((*bytes)[i])) << (8 * i);
  }
  bytes->remove_prefix(sizeof(T));
  return value;
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_BYTES_H_
