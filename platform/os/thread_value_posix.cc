#include <dlfcn.h>
#include <pthread.h>

#include "platform/os/thread_value.h"

namespace vmm::platform {

static_assert(sizeof(pthread_key_t) <= sizeof(std::uint32_t));

ThreadValue::ThreadValue(void (*end)(void* value)) {
  // Of the program itself no such library is known.
  Dl_info about = {};
  if (::dladdr(reinterpret_cast<void*>(end), &about) != 0) {
    ::dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
  pthread_key_t key = 0;
  has_slot_ = ::pthread_key_create(&key, end) == 0;
  slot_ = key;
}

void* ThreadValue::Get() const {
  return has_slot_ ? ::pthread_getspecific(slot_) : nullptr;
}

bool ThreadValue::Set(void* value) const {
  return has_slot_ && ::pthread_setspecific(slot_, value) == 0;
}

}  // namespace vmm::platform
