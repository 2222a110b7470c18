// What the tests of memory that is released and restored have in common.
#ifndef VMMSHARE_TESTS_IPC_RESTORABLE_IPC_TEST_H_
#define VMMSHARE_TESTS_IPC_RESTORABLE_IPC_TEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/restorable.h"

namespace vmm::testing {

class RestorableIpcTest : public IpcTest {
 protected:
  // Contents of WritePattern(seed).
  RestorableAllocation MakeRestorable(std::uint64_t seed,
                                      std::uint64_t size = kGranule,
                                      std::uint64_t max_chunk = 0) {
    return Must(RestorableAllocation::Share(
        *endpoint_, MakePattern(size, seed, max_chunk)));
  }
  RestorableImport Open(const RestorableAllocation& owner,
                        Access access = Access::kReadWrite) {
    return Must(RestorableImport::Open(driver(), owner.ticket(),
                                       {.access = access}, Late()));
  }
  std::uint64_t FreeMemory() const {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  // Exactly on the host-memory driver; others use memory of their own meanwhile.
  void ExpectFree(std::uint64_t expected) const {
    const std::uint64_t free = FreeMemory();
    const std::uint64_t off =
        free < expected ? expected - free : free - expected;
    EXPECT_LE(off, OnHostMemoryDriver() ? 0 : kGranule) << free << " are free";
  }
  Endpoint& endpoint() { return *endpoint_; }

 private:
  const std::unique_ptr<Endpoint> endpoint_ =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_RESTORABLE_IPC_TEST_H_
