#include "platform/abandon.h"

#include <mutex>
#include <utility>
#include <vector>

namespace vmm::platform {

void Abandon(std::shared_ptr<const void> object) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<std::shared_ptr<const void>>;
  std::lock_guard<std::mutex> lock(mutex);
  abandoned->push_back(std::move(object));
}

}  // namespace vmm::platform
