#include "platform/base/abandon.h"

#include <atomic>

namespace vmm::platform {

void Abandonable::Keep(Abandonable* object) {
  static std::atomic<Abandonable*> last{nullptr};
  object->next_ = last.exchange(object);
}

}  // namespace vmm::platform
