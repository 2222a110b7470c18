// Lets memory come while other work is done.
#ifndef VMMSHARE_PLATFORM_PREFETCH_H_
#define VMMSHARE_PLATFORM_PREFETCH_H_

namespace vmm::platform {

// Asks for the cache line of `at`, which need not be valid. A hint: does
// nothing with compilers that have no such thing.
inline void Prefetch([[maybe_unused]] const void* at) {
#ifdef __has_builtin
#if __has_builtin(__builtin_prefetch)
  __builtin_prefetch(at);
#endif
#endif
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_PREFETCH_H_
