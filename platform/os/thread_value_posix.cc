#include <pthread.h>

#include "platform/os/keep_loaded_posix.h"
#include "platform/os/thread_value.h"

namespace vmm::platform {

static_assert(sizeof(pthread_key_t) <= sizeof(std::uint32_t));

ThreadValue::ThreadValue(void (*end)(void* value)) : end_(end) {
  KeepLoaded(reinterpret_cast<void*>(end_));
  pthread_key_t key = 0;
  has_slot_ = ::pthread_key_create(&key, end_) == 0;
  slot_ = key;
}

void* ThreadValue::Get() const {
  return has_slot_ ? ::pthread_getspecific(slot_) : nullptr;
}

bool ThreadValue::Set(void* value) const {
  return has_slot_ && ::pthread_setspecific(slot_, value) == 0;
}

}  // namespace vmm::platform
