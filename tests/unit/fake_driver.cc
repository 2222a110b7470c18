#include "tests/unit/fake_driver.h"

#include <string_view>
#include <type_traits>

#include "platform/base/check.h"
#include "platform/cuda/driver_table.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;

CUresult Count(const char* call, const char* what, int change) {
  ++Fake().performed[call];
  Fake().held[what] += static_cast<std::uint64_t>(change);
  return CUDA_SUCCESS;
}

// Answers NOT_SUPPORTED whatever the signature.
template <typename Pointer>
struct Refusal;
template <typename... Args>
struct Refusal<CUresult(CUDAAPI*)(Args...)> {
  static CUresult CUDAAPI Call(Args...) { return CUDA_ERROR_NOT_SUPPORTED; }
};

DriverTable MakeTable() {
  DriverTable table;
  platform::ForEachDriverEntry([&table](auto entry) {
    auto& slot = table.*(entry.kMember);
    if (entry.need == platform::EntryNeed::kRequired) {
      slot = &Refusal<std::remove_cvref_t<decltype(slot)>>::Call;
    }
  });
  table.cuInit = [](unsigned) { return CUDA_SUCCESS; };
  table.cuDriverGetVersion = [](int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
  };
  table.cuGetErrorName = [](CUresult result, const char** name) {
    *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  };
  table.cuGetErrorString = [](CUresult, const char** text) {
    *text = "a fake error";
    return CUDA_SUCCESS;
  };
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t,
                         const CUmemAllocationProp*, unsigned long long) {
    *handle = 7;
    return Count("cuMemCreate", "handles", +1);
  };
  table.cuMemRelease = [](CUmemGenericAllocationHandle) {
    return Count("cuMemRelease", "handles", -1);
  };
  table.cuMemAddressReserve = [](CUdeviceptr* at, size_t, size_t, CUdeviceptr,
                                 unsigned long long) {
    *at = 0x10000;
    return Count("cuMemAddressReserve", "address reservations", +1);
  };
  table.cuMemAddressFree = [](CUdeviceptr, size_t) {
    return Count("cuMemAddressFree", "address reservations", -1);
  };
  table.cuMemMap = [](CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                      unsigned long long) {
    return Count("cuMemMap", "mappings", +1);
  };
  table.cuMemUnmap = [](CUdeviceptr, size_t) {
    return Count("cuMemUnmap", "mappings", -1);
  };
  table.cuMemGetInfo = [](size_t* free, size_t* total) {
    *free = *total = 1 << 20;
    return CUDA_SUCCESS;
  };
  return table;
}

CUresult CUDAAPI GetAddress(const char* symbol, void** address, int version,
                            cuuint64_t, CUdriverProcAddressQueryResult*) {
  const DriverTable table = MakeTable();
  *address = nullptr;
  platform::ForEachDriverEntry([&](auto entry) {
    if (std::string_view(symbol) == entry.name && version == entry.version) {
      *address = reinterpret_cast<void*>(table.*(entry.kMember));
    }
  });
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

FakeState& Fake() {
  static FakeState state;
  return state;
}

platform::Driver LoadFakeDriver(bool host_memory) {
  Fake() = FakeState();
  absl::StatusOr<platform::Driver> driver = platform::Driver::LoadFromLookup(
      "the fake driver", [host_memory](std::string_view symbol) -> void* {
        if (symbol == "cuGetProcAddress_v2") {
          return reinterpret_cast<void*>(&GetAddress);
        }
        if (symbol == "vmmshareHostDriverVersion" && host_memory) {
          return &Fake();
        }
        return nullptr;
      });
  if (!driver.ok()) platform::Die(driver.status().ToString());
  return *std::move(driver);
}

}  // namespace vmm::testing
