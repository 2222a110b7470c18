// Loads a library and lets it go again, which platform/ never does.
#ifndef VMMSHARE_TESTS_OS_UNLOAD_H_
#define VMMSHARE_TESTS_OS_UNLOAD_H_

namespace vmm::testing {

// Null when it cannot be loaded.
void* Load(const char* path);
void* Find(void* library, const char* symbol);
void Unload(void* library);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_OS_UNLOAD_H_
