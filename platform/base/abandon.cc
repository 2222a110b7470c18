#include "platform/base/abandon.h"

#include <atomic>

namespace vmm::platform {

void Abandonable::Keep(Abandonable* object) {
  static std::atomic<Abandonable*> last{nullptr};
  object->next_ = last.load();
  while (!last.compare_exchange_weak(object->next_, object)) {
  }
}

}  // namespace vmm::platform
