// Opening what another process shares as a DriverBlock.
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/location.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// What the driver answers does not tell one of these from another (measured: a
// handle of nothing is INVALID_VALUE, MAP_FAILED or NOT_PERMITTED).
constexpr char kAdvice[] =
    "The owner has freed it or ended, shares no IPC and PID namespace with "
    "this process, or is another user.";

absl::StatusOr<CUdeviceptr> OpenLegacy(const Driver& driver,
                                       const HandleBytes& bytes) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuIpcOpenMemHandle>());
  CUipcMemHandle raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  CUdeviceptr address = 0;
  const CUresult r = driver->cuIpcOpenMemHandle(
      &address, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (r == CUDA_SUCCESS) return address;
  // Measured.
  if (r == CUDA_ERROR_INVALID_CONTEXT) {
    return absl::FailedPreconditionError(absl::StrCat(
        driver.Error(r, "cuIpcOpenMemHandle()").message(),
        ". A process cannot open legacy IPC's handle of its own memory"));
  }
  return driver.Error(r, "cuIpcOpenMemHandle()", kAdvice);
}

// The pools of others of which this process has pointers open. The driver has one
// for each, however often it is imported; gives the same address for a pointer each
// time, and frees it at the first cuMemFree() (measured).
class ImportedPools {
 public:
  // Never destroyed: memory may go after the end of main().
  static ImportedPools& Get() {
    static auto* const pools = new ImportedPools;
    return *pools;
  }

  absl::StatusOr<CUdeviceptr> Open(const Device& device, const Device& owner,
                                   const StreamPoolHandle& handle) {
    const Driver& driver = device.driver();
    // All of it: nobody destroys the pool meanwhile.
    const platform::MutexLock lock(mutex_);
    CUmemoryPool pool = nullptr;
    if (CUresult r = driver->cuMemPoolImportFromShareableHandle(
            &pool, reinterpret_cast<void*>(handle.pool.get()),
            platform::kMemoryHandleKind.type, 0);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemPoolImportFromShareableHandle()", kAdvice);
    }
    const absl::StatusOr<CUdeviceptr> address =
        OpenIn(pool, device, owner, handle);
    if (address.ok()) {
      ++opens_[{&driver.table(), *address}].count;
      opens_[{&driver.table(), *address}].pool = pool;
    } else {
      DestroyUnused(driver, pool).IgnoreError();  // The other error matters.
    }
    return address;
  }

  absl::Status Close(const Driver& driver, CUdeviceptr address) {
    const platform::MutexLock lock(mutex_);
    const auto found = opens_.find({&driver.table(), address});
    if (found == opens_.end() || --found->second.count > 0) {
      return absl::OkStatus();
    }
    const CUmemoryPool pool = found->second.pool;
    opens_.erase(found);
    RETURN_IF_ERROR(
        driver.Error(driver->cuMemFree(address),
                     absl::StrCat("cuMemFree(address=0x", absl::Hex(address),
                                  ") of an imported pool")));
    return DestroyUnused(driver, pool);
  }

 private:
  struct OpenPointer {
    CUmemoryPool pool = nullptr;
    std::uint64_t count = 0;
  };

  static absl::StatusOr<CUdeviceptr> OpenIn(CUmemoryPool pool,
                                            const Device& device,
                                            const Device& owner,
                                            const StreamPoolHandle& handle) {
    const Driver& driver = device.driver();
    if (device != owner) {
      CUmemAccessDesc access{};
      access.location = Location::On(device).ToCuda();
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      if (CUresult r = driver->cuMemPoolSetAccess(pool, &access, 1);
          r != CUDA_SUCCESS) {
        return driver.Error(r,
                            absl::StrCat("cuMemPoolSetAccess(imported pool, ",
                                         device.Describe(), ")"));
      }
    }
    CUmemPoolPtrExportData data;
    std::memcpy(&data, handle.pointer.data(), sizeof(data));
    CUdeviceptr address = 0;
    if (CUresult r = driver->cuMemPoolImportPointer(&address, pool, &data);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemPoolImportPointer()", kAdvice);
    }
    return address;
  }

  // The driver refuses where somebody else in the process has pointers of it open.
  absl::Status DestroyUnused(const Driver& driver, CUmemoryPool pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [at, open] : opens_) {
      if (open.pool == pool) return absl::OkStatus();
    }
    const CUresult r = driver->cuMemPoolDestroy(pool);
    return r == CUDA_ERROR_INVALID_VALUE
               ? absl::OkStatus()
               : driver.Error(r, "cuMemPoolDestroy(imported pool)");
  }

  platform::Mutex mutex_;
  std::map<std::pair<const DriverTable*, CUdeviceptr>, OpenPointer> opens_
      ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<CUdeviceptr> OpenPooled(const Device& device,
                                       const Device& owner,
                                       const StreamPoolHandle& handle) {
  const Driver& driver = device.driver();
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuMemPoolImportPointer>());
  RETURN_IF_ERROR(platform::CheckMemoryHandle(
      handle.pool,
      driver.is_host_memory() ? platform::MemoryBacking::kHostMemory
                              : platform::MemoryBacking::kNvidiaDriver,
      platform::kHostMemoryPoolBytes));
  return ImportedPools::Get().Open(device, owner, handle);
}

absl::Status CloseBlock(const OpenBlock& block) {
  const Driver& driver = *block.driver;
  ASSIGN_OR_RETURN(const CurrentContext current, block.context->MakeCurrent());
  const CUdeviceptr at = block.span.base;
  return block.kind == HandleKind::kLegacyIpc
             ? driver.Error(driver->cuIpcCloseMemHandle(at),
                            absl::StrCat("cuIpcCloseMemHandle(address=0x",
                                         absl::Hex(at), ")"))
             : ImportedPools::Get().Close(driver, at);
}

}  // namespace

void OpenBlockTraits::Close(const Value& value) {
  platform::ReportReleaseFailure(CloseBlock(value));
}

absl::StatusOr<OwnedOpenBlock> OpenSharedBlock(const Device& device,
                                               const Device& owner,
                                               HandleKind kind,
                                               const ExportedHandle& handle,
                                               std::uint64_t size) {
  const auto* legacy = std::get_if<LegacyHandle>(&handle);
  const auto* pooled = std::get_if<StreamPoolHandle>(&handle);
  if (kind == HandleKind::kLegacyIpc ? legacy == nullptr : pooled == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "another handle came where a ", NameOf(kind), " was expected"));
  }
  const Driver& driver = device.driver();
  OpenBlock block{driver, nullptr, kind, {}};
  ASSIGN_OR_RETURN(PrimaryContext primary, PrimaryContext::Retain(device));
  block.context = std::make_shared<const PrimaryContext>(std::move(primary));
  ASSIGN_OR_RETURN(const CurrentContext current, block.context->MakeCurrent());
  ASSIGN_OR_RETURN(block.span.base, legacy != nullptr
                                        ? OpenLegacy(driver, legacy->bytes)
                                        : OpenPooled(device, owner, *pooled));
  block.span.size = size;
  OwnedOpenBlock opened = OwnedOpenBlock::Adopt(block);
  CUdeviceptr base = 0;
  std::size_t found = 0;
  if (CUresult r = driver->cuMemGetAddressRange(&base, &found, block.span.base);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuMemGetAddressRange(0x",
                                        absl::Hex(block.span.base), ")"));
  }
  if (base == block.span.base && found == size) return opened;
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", NameOf(kind), " is of ", found, " bytes and not of ", size,
      ": the owner has freed the memory, and something else is there now"));
}

}  // namespace vmm
