// What a caller (caller.h) may do next. Each operation makes a few calls, on what is
// on the shelves of its world, and puts what they make there.
#ifndef VMMSHARE_TESTS_CALLS_OPERATIONS_H_
#define VMMSHARE_TESTS_CALLS_OPERATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/calls/caller.h"

namespace vmm::testing {

struct Operation {
  void (*run)(Caller& caller);
  std::uint64_t weight;  // Of all weights' sum.
};

std::vector<Operation> MemoryOperations();
std::vector<Operation> SharingOperations();
std::vector<Operation> PoolOperations();
std::vector<Operation> PoolStreamOperations();
std::vector<Operation> ImportedPoolOperations();
std::vector<Operation> FenceOperations();
std::vector<Operation> RingOperations();
std::vector<Operation> RestorableOperations();
std::vector<Operation> KeeperOperations();
std::vector<Operation> HookOperations();

// Of all of these, one.
void DoSomething(Caller& caller);

// Helpers of several.
vmmshare_memory_options AnyMemoryOptions(Caller& caller);
vmmshare_import_options AnyImportOptions(Caller& caller);
// Memory that is filled, and not on a shelf; null after a failure.
ThingRef MakeMemory(Caller& caller, const vmmshare_memory_options& options);
ThingRef KeepImported(Caller& caller, vmmshare_memory* memory,
                      std::uint8_t fill);
// A server; starts one where there is none. Null after a failure.
ThingRef AServer(Caller& caller);
void Post(Caller& caller, Offered what, const Offer& offer);
std::optional<Offer> Read(Caller& caller, Offered what);
Offer OfferOf(const std::string& text, std::uint8_t fill = 0,
              std::uint64_t size = 0);
// The text of an offer, which one time in some is damaged.
std::string TextOf(Caller& caller, const Offer& offer);
// Looks at a text that a call made.
void CheckText(Caller& caller, vmmshare_status status, vmmshare_text* text);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CALLS_OPERATIONS_H_
