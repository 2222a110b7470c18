// The driver under test with some entries changed: what no driver says on demand.
#ifndef VMMSHARE_TESTS_GPU_CHANGED_DRIVER_H_
#define VMMSHARE_TESTS_GPU_CHANGED_DRIVER_H_

#include <cuda.h>

#include <string>
#include <string_view>

#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {

// While one is being loaded.
inline platform::DriverTable& LoadingTable() {
  static platform::DriverTable table;
  return table;
}

inline CUresult CUDAAPI AddressInLoadingTable(const char* symbol,
                                              void** address, int version,
                                              cuuint64_t,
                                              CUdriverProcAddressQueryResult*) {
  *address = nullptr;
  platform::ForEachDriverEntry([&](auto entry) {
    if (std::string_view(symbol) == entry.name && version == entry.version) {
      *address = reinterpret_cast<void*>(LoadingTable().*(entry.kMember));
    }
  });
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// A driver of these entries: TestDriver().table() with some changed. On one
// thread at a time.
inline platform::Driver ChangedDriver(
    const platform::DriverTable& table,
    bool is_host_memory = TestDriver().is_host_memory()) {
  LoadingTable() = table;
  return Must(platform::Driver::LoadFromLookup(
      "a changed driver", [is_host_memory](std::string_view symbol) -> void* {
        static int mark = 0;
        if (symbol == "cuGetProcAddress_v2") {
          return reinterpret_cast<void*>(&AddressInLoadingTable);
        }
        const bool marked =
            symbol == "vmmshareHostDriverVersion" && is_host_memory;
        return marked ? &mark : nullptr;
      }));
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_CHANGED_DRIVER_H_
