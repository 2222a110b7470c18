// WrappedDriver: a driver each of whose calls an object of the caller's type
// surrounds.
//
//   struct CountCall { CountCall() { ++calls; } };
//   absl::StatusOr<Driver> counting =
//       bench::WrappedDriver<CountCall>(driver, "counts calls");
#ifndef VMMSHARE_BENCH_DRIVER_WRAPPER_H_
#define VMMSHARE_BENCH_DRIVER_WRAPPER_H_

#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"

namespace bench {

template <typename Around>
class DriverWrapper {
 public:
  static absl::StatusOr<vmm::platform::Driver> Wrap(
      const vmm::platform::Driver& real, std::string_view what) {
    real_ = real.table();
    return vmm::platform::Driver::LoadFromLookup(
        absl::StrCat("a table that ",
                     absl::string_view(what.data(), what.size()), ", before ",
                     real.Describe()),
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

 private:
  using Table = vmm::platform::DriverTable;

  template <auto Member, typename Pointer>
  struct Thunk;
  template <auto Member, typename Result, typename... Args>
  struct Thunk<Member, Result(CUDAAPI*)(Args...)> {
    static Result CUDAAPI Call(Args... args) {
      [[maybe_unused]] const Around around;
      return (real_.*Member)(args...);
    }
  };

  // One name stands for several signatures: the newest that is not newer than
  // `version` is meant, as the driver itself chooses.
  static CUresult CUDAAPI GetAddress(const char* symbol, void** address,
                                     int version, cuuint64_t,
                                     CUdriverProcAddressQueryResult*) {
    *address = nullptr;
    int best = 0;
    vmm::platform::ForEachDriverEntry([&](auto entry) {
      constexpr auto kMember = decltype(entry)::kMember;
      if (std::string_view(symbol) != entry.name || entry.version > version ||
          entry.version < best) {
        return;
      }
      best = entry.version;
      using Pointer = std::remove_cvref_t<decltype(real_.*kMember)>;
      *address = real_.*kMember == nullptr
                     ? nullptr
                     : reinterpret_cast<void*>(&Thunk<kMember, Pointer>::Call);
    });
    return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  }

  // Plain function pointers carry no state.
  static inline Table real_;
};

// `real` with an `Around` made before each call and destroyed after it, in the
// thread that calls. REQUIRES: called once for each type.
template <typename Around>
absl::StatusOr<vmm::platform::Driver> WrappedDriver(
    const vmm::platform::Driver& real, std::string_view what) {
  return DriverWrapper<Around>::Wrap(real, what);
}

}  // namespace bench

#endif  // VMMSHARE_BENCH_DRIVER_WRAPPER_H_
