// What a driver holds for this process, so that a test can assert that nothing
// is left.
#ifndef VMMSHARE_TESTS_SUPPORT_LEDGER_H_
#define VMMSHARE_TESTS_SUPPORT_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "platform/cuda/driver.h"

namespace vmm::testing {

// Counts by name: "handles", "mapped bytes".
using Inventory = std::map<std::string, std::uint64_t>;

// What `driver` holds now.
//
// The host-memory driver keeps a ledger, which is answered whole. A real
// driver is asked for each device's free memory, but only for devices whose
// primary context is active: asking must create no context and take no memory.
// When there is none, the inventory is empty and one line says so, once.
// Either way the calling thread's current context is part of it, and how many there
// are on top of each other.
Inventory TakeInventory(const platform::Driver& driver);
inline constexpr char kContexts[] = "contexts of the thread";
inline constexpr char kFreeBytes[] =
    "free bytes of device ";  // And its ordinal.

// How many contexts the thread has on top of each other, and takes away all but the
// first `keep`.
std::size_t CountContexts(const platform::Driver& driver);
void DropContexts(const platform::Driver& driver, std::size_t keep);

// One line for each difference: "handles: 0 before, 1 after". More free memory of a
// device than before is none: processes that share the GPU, or another one of the
// machine, give back what is theirs (64 KiB was seen when one of another GPU ended).
std::vector<std::string> Differences(const Inventory& before,
                                     const Inventory& after);

// Asserts on destruction that `driver` holds what it held when this was made.
class ExpectLedgerUnchanged {
 public:
  explicit ExpectLedgerUnchanged(const platform::Driver& driver);
  ExpectLedgerUnchanged(const ExpectLedgerUnchanged&) = delete;
  ExpectLedgerUnchanged& operator=(const ExpectLedgerUnchanged&) = delete;
  ~ExpectLedgerUnchanged();

 private:
  platform::Driver driver_;
  Inventory before_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_LEDGER_H_
