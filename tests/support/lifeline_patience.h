// How long a test program waits for a lifeline's answer: test_main.cc has it wait
// for as long as a busy machine may need.
#ifndef VMMSHARE_TESTS_SUPPORT_LIFELINE_PATIENCE_H_
#define VMMSHARE_TESTS_SUPPORT_LIFELINE_PATIENCE_H_

#include <chrono>

#include "platform/ipc/lifeline.h"

namespace vmm::testing {

// While it lives, as long as every other program: for tests in which somebody
// waits in vain, or may.
class ProductsLifelinePatience {
 public:
  ProductsLifelinePatience()
      : before_(platform::internal::SetLifelinePatience(
            platform::kLifelinePatience)) {}
  ~ProductsLifelinePatience() {
    platform::internal::SetLifelinePatience(before_);
  }
  ProductsLifelinePatience(const ProductsLifelinePatience&) = delete;
  ProductsLifelinePatience& operator=(const ProductsLifelinePatience&) = delete;

 private:
  const std::chrono::milliseconds before_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_LIFELINE_PATIENCE_H_
