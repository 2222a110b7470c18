#include "tests/support/refused_memory.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace vmm::testing {

constinit thread_local Refusal refusal;

namespace {

void* MemoryOf(std::size_t size) {
  if (refusal.granted_first == 0) {
    if (!refusal.lasts) refusal.granted_first = -1;
    refusal.happened = true;
    return nullptr;
  }
  if (refusal.granted_first > 0) --refusal.granted_first;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace
}  // namespace vmm::testing

using vmm::testing::MemoryOf;

void* operator new(std::size_t size) {
  if (void* const memory = MemoryOf(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return MemoryOf(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// No system has one function for it: the block is kept below what is returned.
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto multiple = static_cast<std::size_t>(alignment);
  void* const block = MemoryOf(size + multiple + sizeof(void*));
  if (block == nullptr) throw std::bad_alloc();
  const auto least = reinterpret_cast<std::uintptr_t>(block) + sizeof(void*);
  void** const at =
      reinterpret_cast<void**>((least + multiple - 1) / multiple * multiple);
  at[-1] = block;
  return at;
}
void operator delete(void* memory, std::align_val_t) noexcept {
  if (memory != nullptr) std::free(static_cast<void**>(memory)[-1]);
}
void operator delete(void* memory, std::size_t,
                     std::align_val_t alignment) noexcept {
  operator delete(memory, alignment);
}
