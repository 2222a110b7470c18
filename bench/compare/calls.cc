#include "bench/compare/calls.h"

#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "platform/driver_table.h"

namespace bench::compare {
namespace {

using vmm::platform::Driver;
using vmm::platform::DriverTable;

// Plain function pointers carry no state.
DriverTable real_table;
thread_local std::uint64_t calls = 0;

template <auto Member, typename Pointer>
struct Thunk;
template <auto Member, typename Result, typename... Args>
struct Thunk<Member, Result(CUDAAPI*)(Args...)> {
  static Result CUDAAPI Call(Args... args) {
    ++calls;
    return (real_table.*Member)(args...);
  }
};

// One name stands for several signatures: the newest that is not newer than
// `version` is meant, as the driver itself chooses.
CUresult CUDAAPI GetAddress(const char* symbol, void** address, int version,
                            cuuint64_t, CUdriverProcAddressQueryResult*) {
  *address = nullptr;
  int best = 0;
  vmm::platform::ForEachDriverEntry([&](auto entry) {
    constexpr auto kMember = decltype(entry)::kMember;
    if (std::string_view(symbol) != entry.name || entry.version > version ||
        entry.version < best) {
      return;
    }
    best = entry.version;
    using Pointer = std::remove_cvref_t<decltype(real_table.*kMember)>;
    *address = real_table.*kMember == nullptr
                   ? nullptr
                   : reinterpret_cast<void*>(&Thunk<kMember, Pointer>::Call);
  });
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

absl::StatusOr<Driver> CountingDriver(const Driver& real) {
  real_table = real.table();
  return Driver::LoadFromLookup(
      absl::StrCat("a table that counts calls, before ", real.Describe()),
      [real](std::string_view symbol) -> void* {
        if (symbol == "cuGetProcAddress_v2") {
          return reinterpret_cast<void*>(&GetAddress);
        }
        // Its presence alone marks the host-memory driver.
        static int mark = 0;
        return symbol == "vmmshareHostDriverVersion" && real.is_host_memory()
                   ? &mark
                   : nullptr;
      });
}

std::uint64_t DriverCalls() { return calls; }

}  // namespace bench::compare
