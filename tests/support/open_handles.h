// What this process holds open, so that a test can assert that nothing is left.
#ifndef VMMSHARE_TESTS_SUPPORT_OPEN_HANDLES_H_
#define VMMSHARE_TESTS_SUPPORT_OPEN_HANDLES_H_

#include <cstddef>
#include <map>
#include <string>

namespace vmm::testing {

// Every open descriptor of this process and what it refers to, less those that
// a driver keeps for itself from cuInit on if taken after loading it.
std::map<int, std::string> OpenHandles();

// How many of any kind are open. Windows: as GetProcessHandleCount() says, with
// those that OpenHandles() leaves out.
std::size_t OpenHandleCount();

// The same by the type of object, as the system names it. Windows only.
std::map<std::string, std::size_t> OpenHandlesByType();

// Asserts on destruction that the same descriptors are open as when it was
// made, and names those that are not. Make it after the driver is loaded.
class ExpectNoNewHandles {
 public:
  ExpectNoNewHandles();
  ~ExpectNoNewHandles();

 private:
  std::map<int, std::string> before_;
  // Windows: of the types that OpenHandles() leaves out as well.
  std::map<std::string, std::size_t> types_before_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_OPEN_HANDLES_H_
