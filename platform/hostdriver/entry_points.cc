// cuGetProcAddress: entry points by name and version.
#include "platform/hostdriver/entry_points.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "platform/hostdriver/cliques.h"
#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/made_context.h"

// The signature of CUDA 11.3, which cuda.h no longer declares: its name is a
// macro for the one of CUDA 12.
#undef cuGetProcAddress
extern "C" [[gnu::visibility("default")]] CUresult CUDAAPI cuGetProcAddress(
    const char* symbol, void** function, int version, cuuint64_t flags);
#undef cuDeviceGetUuid
extern "C" [[gnu::visibility("default")]] CUresult CUDAAPI
cuDeviceGetUuid(CUuuid* uuid, CUdevice device);

namespace vmm::hostdriver {
namespace {

struct Entry {
  const char* name;
  int version;  // The CUDA version that brought this signature.
  void* function;
};

template <typename Function>
Entry Make(const char* name, int version, Function* function) {
  return {name, version, reinterpret_cast<void*>(function)};
}

// Newer signatures of a name stand after older ones.
const Entry kEntries[] = {
    Make("cuInit", 2000, &cuInit),
    Make("cuDriverGetVersion", 2020, &cuDriverGetVersion),
    Make("cuGetErrorName", 6000, &cuGetErrorName),
    Make("cuGetErrorString", 6000, &cuGetErrorString),
    Make("cuDeviceGetCount", 2000, &cuDeviceGetCount),
    Make("cuDeviceGet", 2000, &cuDeviceGet),
    Make("cuDeviceGetName", 2000, &cuDeviceGetName),
    Make("cuDeviceGetUuid", 9020, &cuDeviceGetUuid),
    Make("cuDeviceGetUuid", 11040, &cuDeviceGetUuid_v2),
    Make("cuDeviceTotalMem", 3020, &cuDeviceTotalMem),
    Make("cuDeviceGetAttribute", 2000, &cuDeviceGetAttribute),
    Make("cuDeviceCanAccessPeer", 4000, &cuDeviceCanAccessPeer),
    Make("cuDeviceGetP2PAttribute", 8000, &cuDeviceGetP2PAttribute),
    Make("cuDeviceGetFabricClusterUuid", 13040, &GetFabricClusterUuid),
    Make("cuDeviceGetCliqueCount", 13040, &GetCliqueCount),
    Make("cuDeviceGetCliqueInfo", 13040, &GetCliqueInfo),
    Make("cuDevicePrimaryCtxRetain", 7000, &cuDevicePrimaryCtxRetain),
    Make("cuDevicePrimaryCtxRelease", 11000, &cuDevicePrimaryCtxRelease),
    Make("cuDevicePrimaryCtxReset", 11000, &cuDevicePrimaryCtxReset),
    Make("cuDevicePrimaryCtxGetState", 7000, &cuDevicePrimaryCtxGetState),
    Make("cuCtxCreate", 3020, &cuCtxCreate_v2),
    Make("cuCtxCreate", 11040, &cuCtxCreate_v3),
    Make("cuCtxCreate", 12050, &cuCtxCreate_v4),
    Make("cuCtxDestroy", 4000, &cuCtxDestroy),
    Make("cuCtxEnablePeerAccess", 4000, &cuCtxEnablePeerAccess),
    Make("cuCtxDisablePeerAccess", 4000, &cuCtxDisablePeerAccess),
    Make("cuCtxGetCurrent", 4000, &cuCtxGetCurrent),
    Make("cuCtxSetCurrent", 4000, &cuCtxSetCurrent),
    Make("cuCtxPushCurrent", 4000, &cuCtxPushCurrent),
    Make("cuCtxPopCurrent", 4000, &cuCtxPopCurrent),
    Make("cuCtxGetDevice", 2000, &cuCtxGetDevice),
    Make("cuCtxSynchronize", 2000, &cuCtxSynchronize),
    Make("cuMemCreate", 10020, &cuMemCreate),
    Make("cuMemRelease", 10020, &cuMemRelease),
    Make("cuMemGetAllocationGranularity", 10020,
         &cuMemGetAllocationGranularity),
    Make("cuMemRetainAllocationHandle", 11000, &cuMemRetainAllocationHandle),
    Make("cuMemGetAllocationPropertiesFromHandle", 10020,
         &cuMemGetAllocationPropertiesFromHandle),
    Make("cuMemExportToShareableHandle", 10020, &cuMemExportToShareableHandle),
    Make("cuMemImportFromShareableHandle", 10020,
         &cuMemImportFromShareableHandle),
    Make("cuMemGetHandleForAddressRange", 11070,
         &cuMemGetHandleForAddressRange),
    Make("cuMemAddressReserve", 10020, &cuMemAddressReserve),
    Make("cuMemAddressFree", 10020, &cuMemAddressFree),
    Make("cuMemMap", 10020, &cuMemMap),
    Make("cuMemUnmap", 10020, &cuMemUnmap),
    Make("cuMemSetAccess", 10020, &cuMemSetAccess),
    Make("cuMemGetAccess", 10020, &cuMemGetAccess),
    Make("cuMemGetInfo", 3020, &cuMemGetInfo),
    Make("cuMemAlloc", 3020, &cuMemAlloc),
    Make("cuMemFree", 3020, &cuMemFree),
    Make("cuMemAllocManaged", 6000, &cuMemAllocManaged),
    Make("cuMemAllocHost", 3020, &cuMemAllocHost),
    Make("cuMemHostAlloc", 2020, &cuMemHostAlloc),
    Make("cuMemFreeHost", 2000, &cuMemFreeHost),
    Make("cuMemAllocAsync", 11020, &cuMemAllocAsync),
    Make("cuMemFreeAsync", 11020, &cuMemFreeAsync),
    Make("cuMemAllocFromPoolAsync", 11020, &cuMemAllocFromPoolAsync),
    Make("cuDeviceGetDefaultMemPool", 11020, &cuDeviceGetDefaultMemPool),
    Make("cuDeviceGetMemPool", 11020, &cuDeviceGetMemPool),
    Make("cuDeviceSetMemPool", 11020, &cuDeviceSetMemPool),
    Make("cuMemPoolCreate", 11020, &cuMemPoolCreate),
    Make("cuMemPoolDestroy", 11020, &cuMemPoolDestroy),
    Make("cuMemPoolSetAccess", 11020, &cuMemPoolSetAccess),
    Make("cuMemPoolGetAccess", 11020, &cuMemPoolGetAccess),
    Make("cuMemPoolSetAttribute", 11020, &cuMemPoolSetAttribute),
    Make("cuMemPoolGetAttribute", 11020, &cuMemPoolGetAttribute),
    Make("cuMemPoolTrimTo", 11020, &cuMemPoolTrimTo),
    Make("cuMemPoolExportToShareableHandle", 11020,
         &cuMemPoolExportToShareableHandle),
    Make("cuMemPoolImportFromShareableHandle", 11020,
         &cuMemPoolImportFromShareableHandle),
    Make("cuMemPoolExportPointer", 11020, &cuMemPoolExportPointer),
    Make("cuMemPoolImportPointer", 11020, &cuMemPoolImportPointer),
    Make("cuMemGetAddressRange", 3020, &cuMemGetAddressRange),
    Make("cuPointerGetAttribute", 4000, &cuPointerGetAttribute),
    Make("cuPointerGetAttributes", 7000, &cuPointerGetAttributes),
    Make("cuMemcpy", 4000, &cuMemcpy),
    Make("cuMemcpyAsync", 4000, &cuMemcpyAsync),
    Make("cuMemcpyHtoD", 3020, &cuMemcpyHtoD),
    Make("cuMemcpyDtoH", 3020, &cuMemcpyDtoH),
    Make("cuMemcpyDtoD", 3020, &cuMemcpyDtoD),
    Make("cuMemcpyHtoDAsync", 3020, &cuMemcpyHtoDAsync),
    Make("cuMemcpyDtoHAsync", 3020, &cuMemcpyDtoHAsync),
    Make("cuMemcpyDtoDAsync", 3020, &cuMemcpyDtoDAsync),
    Make("cuMemsetD8", 3020, &cuMemsetD8),
    Make("cuMemsetD16", 3020, &cuMemsetD16),
    Make("cuMemsetD32", 3020, &cuMemsetD32),
    Make("cuMemsetD8Async", 3020, &cuMemsetD8Async),
    Make("cuMemsetD16Async", 3020, &cuMemsetD16Async),
    Make("cuMemsetD32Async", 3020, &cuMemsetD32Async),
    Make("cuStreamCreate", 2000, &cuStreamCreate),
    Make("cuStreamCreateWithPriority", 5050, &cuStreamCreateWithPriority),
    Make("cuStreamGetPriority", 5050, &cuStreamGetPriority),
    Make("cuStreamGetFlags", 5050, &cuStreamGetFlags),
    Make("cuCtxGetStreamPriorityRange", 5050, &cuCtxGetStreamPriorityRange),
    Make("cuStreamDestroy", 4000, &cuStreamDestroy),
    Make("cuStreamQuery", 2000, &cuStreamQuery),
    Make("cuStreamSynchronize", 2000, &cuStreamSynchronize),
    Make("cuStreamWaitEvent", 3020, &cuStreamWaitEvent),
    Make("cuStreamGetCtx", 9020, &cuStreamGetCtx),
    Make("cuStreamWriteValue64", 11070, &cuStreamWriteValue64),
    Make("cuStreamWaitValue64", 11070, &cuStreamWaitValue64),
    Make("cuLaunchHostFunc", 10000, &cuLaunchHostFunc),
    Make("cuEventCreate", 2000, &cuEventCreate),
    Make("cuEventRecord", 2000, &cuEventRecord),
    Make("cuEventQuery", 2000, &cuEventQuery),
    Make("cuEventSynchronize", 2000, &cuEventSynchronize),
    Make("cuEventDestroy", 4000, &cuEventDestroy),
    Make("cuStreamBeginCapture", 10010, &cuStreamBeginCapture),
    Make("cuStreamEndCapture", 10000, &cuStreamEndCapture),
    Make("cuStreamIsCapturing", 10000, &cuStreamIsCapturing),
    Make("cuThreadExchangeStreamCaptureMode", 10010,
         &cuThreadExchangeStreamCaptureMode),
    Make("cuGraphInstantiateWithFlags", 11040, &cuGraphInstantiateWithFlags),
    Make("cuGraphLaunch", 10000, &cuGraphLaunch),
    Make("cuGraphExecDestroy", 10000, &cuGraphExecDestroy),
    Make("cuGraphDestroy", 10000, &cuGraphDestroy),
    Make("cuIpcGetEventHandle", 4010, &cuIpcGetEventHandle),
    Make("cuIpcOpenEventHandle", 4010, &cuIpcOpenEventHandle),
    Make("cuIpcGetMemHandle", 4010, &cuIpcGetMemHandle),
    Make("cuIpcOpenMemHandle", 11000, &cuIpcOpenMemHandle),
    Make("cuIpcCloseMemHandle", 4010, &cuIpcCloseMemHandle),
    Make("cuModuleLoad", 2000, &cuModuleLoad),
    Make("cuModuleLoadData", 2000, &cuModuleLoadData),
    Make("cuModuleLoadDataEx", 2010, &cuModuleLoadDataEx),
    Make("cuModuleUnload", 2000, &cuModuleUnload),
    Make("cuModuleGetFunction", 2000, &cuModuleGetFunction),
    Make("cuLaunchKernel", 4000, &cuLaunchKernel),
    Make("cuLibraryGetKernel", 12000, &cuLibraryGetKernel),
    Make("cuLibraryLoadData", 12000, &cuLibraryLoadData),
    Make("cuLibraryUnload", 12000, &cuLibraryUnload),
    Make("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,
         &cuOccupancyMaxActiveBlocksPerMultiprocessor),
    Make("cuGetProcAddress", 11030, &cuGetProcAddress),
    Make("cuGetProcAddress", 12000, &cuGetProcAddress_v2),
};

// The newest signature of `symbol` that `version` has. `known` tells whether
// any version has one.
void* Find(const char* symbol, int version, bool* known) {
  void* found = nullptr;
  *known = false;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, symbol) != 0) continue;
    *known = true;
    if (entry.version <= version) found = entry.function;
  }
  return found;
}

}  // namespace

bool IsEntry(std::string_view name) {
  return std::any_of(std::begin(kEntries), std::end(kEntries),
                     [name](const Entry& entry) { return entry.name == name; });
}

}  // namespace vmm::hostdriver

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function,
                                     int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (version > vmm::hostdriver::DriverVersion())
    return CUDA_ERROR_INVALID_VALUE;
  // There are no per-thread default streams here.
  if (flags != CU_GET_PROC_ADDRESS_DEFAULT &&
      flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool known = false;
  *function = vmm::hostdriver::Find(symbol, version, &known);
  if (status != nullptr) {
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known              ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  // Measured: with a status to say it in, not finding is no error.
  return *function != nullptr || status != nullptr ? CUDA_SUCCESS
                                                   : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function,
                                  int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
