// The CUDA driver as a value: one table of entry points.
//
// Nothing of vmmshare links libcuda. A DriverTable holds the entry points that
// vmmshare, its tests and its examples call; driver.h fills one from the
// installed driver, from a file, or from a look-up function.
//
// Members carry the driver's own names. <cuda.h> renames some of them to their
// current version (cuMemAlloc is a macro for cuMemAlloc_v2); members follow,
// so `driver->cuMemAlloc(...)` reads as in any CUDA program.
#ifndef VMMSHARE_PLATFORM_CUDA_DRIVER_TABLE_H_
#define VMMSHARE_PLATFORM_CUDA_DRIVER_TABLE_H_

#include <cuda.h>

namespace vmm::platform {

// CUcliqueInfo of CUDA 13.4, as its documentation lays it out; older headers
// lack it.
struct CliqueInfo {
  int type;  // CUcliqueType: 0 is of pointers to one device.
  unsigned int id;
};

struct DriverTable {
  // Library and errors.
  decltype(&::cuInit) cuInit = nullptr;
  decltype(&::cuDriverGetVersion) cuDriverGetVersion = nullptr;
  decltype(&::cuGetErrorName) cuGetErrorName = nullptr;
  decltype(&::cuGetErrorString) cuGetErrorString = nullptr;
  // Devices.
  decltype(&::cuDeviceGetCount) cuDeviceGetCount = nullptr;
  decltype(&::cuDeviceGet) cuDeviceGet = nullptr;
  decltype(&::cuDeviceGetName) cuDeviceGetName = nullptr;
  // Not under the driver's name: newer toolkits make that a macro for the
  // second version. The first answers the UUID of a whole GPU, the second that
  // of a MIG instance where the device is one.
  CUresult(CUDAAPI* device_get_gpu_uuid)(CUuuid*, CUdevice) = nullptr;
  CUresult(CUDAAPI* device_get_mig_uuid)(CUuuid*, CUdevice) = nullptr;
  decltype(&::cuDeviceTotalMem) cuDeviceTotalMem = nullptr;
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute = nullptr;
  decltype(&::cuDeviceCanAccessPeer) cuDeviceCanAccessPeer = nullptr;
  decltype(&::cuDeviceGetP2PAttribute) cuDeviceGetP2PAttribute = nullptr;
  // Of CUDA 13.4, as documented.
  CUresult(CUDAAPI* cuDeviceGetFabricClusterUuid)(CUuuid*, CUdevice) = nullptr;
  CUresult(CUDAAPI* cuDeviceGetCliqueCount)(size_t*, CUdevice) = nullptr;
  CUresult(CUDAAPI* cuDeviceGetCliqueInfo)(CliqueInfo*, size_t*,
                                           CUdevice) = nullptr;
  // Contexts.
  decltype(&::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) cuDevicePrimaryCtxRelease = nullptr;
  decltype(&::cuDevicePrimaryCtxReset) cuDevicePrimaryCtxReset = nullptr;
  decltype(&::cuDevicePrimaryCtxGetState) cuDevicePrimaryCtxGetState = nullptr;
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent = nullptr;
  decltype(&::cuCtxSetCurrent) cuCtxSetCurrent = nullptr;
  decltype(&::cuCtxPushCurrent) cuCtxPushCurrent = nullptr;
  decltype(&::cuCtxPopCurrent) cuCtxPopCurrent = nullptr;
  decltype(&::cuCtxGetDevice) cuCtxGetDevice = nullptr;
  decltype(&::cuCtxSynchronize) cuCtxSynchronize = nullptr;
  // Virtual memory management.
  decltype(&::cuMemGetAllocationGranularity) cuMemGetAllocationGranularity =
      nullptr;
  decltype(&::cuMemCreate) cuMemCreate = nullptr;
  decltype(&::cuMemRelease) cuMemRelease = nullptr;
  decltype(&::cuMemRetainAllocationHandle) cuMemRetainAllocationHandle =
      nullptr;
  decltype(&::cuMemGetAllocationPropertiesFromHandle)
      cuMemGetAllocationPropertiesFromHandle = nullptr;
  decltype(&::cuMemAddressReserve) cuMemAddressReserve = nullptr;
  decltype(&::cuMemAddressFree) cuMemAddressFree = nullptr;
  decltype(&::cuMemMap) cuMemMap = nullptr;
  decltype(&::cuMemUnmap) cuMemUnmap = nullptr;
  decltype(&::cuMemSetAccess) cuMemSetAccess = nullptr;
  decltype(&::cuMemGetAccess) cuMemGetAccess = nullptr;
  decltype(&::cuMemExportToShareableHandle) cuMemExportToShareableHandle =
      nullptr;
  decltype(&::cuMemImportFromShareableHandle) cuMemImportFromShareableHandle =
      nullptr;
  decltype(&::cuMemGetHandleForAddressRange) cuMemGetHandleForAddressRange =
      nullptr;
  // Other memory.
  decltype(&::cuMemGetInfo) cuMemGetInfo = nullptr;
  decltype(&::cuMemAlloc) cuMemAlloc = nullptr;
  decltype(&::cuMemFree) cuMemFree = nullptr;
  decltype(&::cuMemHostAlloc) cuMemHostAlloc = nullptr;
  decltype(&::cuMemFreeHost) cuMemFreeHost = nullptr;
  decltype(&::cuMemGetAddressRange) cuMemGetAddressRange = nullptr;
  decltype(&::cuPointerGetAttribute) cuPointerGetAttribute = nullptr;
  decltype(&::cuPointerGetAttributes) cuPointerGetAttributes = nullptr;
  // Stream-ordered pools.
  decltype(&::cuMemAllocAsync) cuMemAllocAsync = nullptr;
  decltype(&::cuMemFreeAsync) cuMemFreeAsync = nullptr;
  decltype(&::cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync = nullptr;
  decltype(&::cuDeviceGetDefaultMemPool) cuDeviceGetDefaultMemPool = nullptr;
  decltype(&::cuDeviceGetMemPool) cuDeviceGetMemPool = nullptr;
  decltype(&::cuDeviceSetMemPool) cuDeviceSetMemPool = nullptr;
  decltype(&::cuMemPoolCreate) cuMemPoolCreate = nullptr;
  decltype(&::cuMemPoolDestroy) cuMemPoolDestroy = nullptr;
  decltype(&::cuMemPoolSetAccess) cuMemPoolSetAccess = nullptr;
  decltype(&::cuMemPoolGetAccess) cuMemPoolGetAccess = nullptr;
  decltype(&::cuMemPoolSetAttribute) cuMemPoolSetAttribute = nullptr;
  decltype(&::cuMemPoolGetAttribute) cuMemPoolGetAttribute = nullptr;
  decltype(&::cuMemPoolTrimTo) cuMemPoolTrimTo = nullptr;
  decltype(&::cuMemPoolExportToShareableHandle)
      cuMemPoolExportToShareableHandle = nullptr;
  decltype(&::cuMemPoolImportFromShareableHandle)
      cuMemPoolImportFromShareableHandle = nullptr;
  decltype(&::cuMemPoolExportPointer) cuMemPoolExportPointer = nullptr;
  decltype(&::cuMemPoolImportPointer) cuMemPoolImportPointer = nullptr;
  // Copies and fills.
  decltype(&::cuMemcpyHtoD) cuMemcpyHtoD = nullptr;
  decltype(&::cuMemcpyDtoH) cuMemcpyDtoH = nullptr;
  decltype(&::cuMemcpyDtoD) cuMemcpyDtoD = nullptr;
  decltype(&::cuMemcpyHtoDAsync) cuMemcpyHtoDAsync = nullptr;
  decltype(&::cuMemcpyDtoHAsync) cuMemcpyDtoHAsync = nullptr;
  decltype(&::cuMemcpyDtoDAsync) cuMemcpyDtoDAsync = nullptr;
  decltype(&::cuMemsetD8) cuMemsetD8 = nullptr;
  decltype(&::cuMemsetD32) cuMemsetD32 = nullptr;
  decltype(&::cuMemsetD8Async) cuMemsetD8Async = nullptr;
  decltype(&::cuMemsetD32Async) cuMemsetD32Async = nullptr;
  // Streams and events.
  decltype(&::cuStreamCreate) cuStreamCreate = nullptr;
  decltype(&::cuStreamDestroy) cuStreamDestroy = nullptr;
  decltype(&::cuStreamQuery) cuStreamQuery = nullptr;
  decltype(&::cuStreamSynchronize) cuStreamSynchronize = nullptr;
  decltype(&::cuStreamWaitEvent) cuStreamWaitEvent = nullptr;
  decltype(&::cuStreamGetCtx) cuStreamGetCtx = nullptr;
  decltype(&::cuStreamWriteValue64) cuStreamWriteValue64 = nullptr;
  decltype(&::cuStreamWaitValue64) cuStreamWaitValue64 = nullptr;
  decltype(&::cuLaunchHostFunc) cuLaunchHostFunc = nullptr;
  decltype(&::cuEventCreate) cuEventCreate = nullptr;
  decltype(&::cuEventRecord) cuEventRecord = nullptr;
  decltype(&::cuEventQuery) cuEventQuery = nullptr;
  decltype(&::cuEventSynchronize) cuEventSynchronize = nullptr;
  decltype(&::cuEventDestroy) cuEventDestroy = nullptr;
  // Stream capture.
  decltype(&::cuStreamIsCapturing) cuStreamIsCapturing = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode)
      cuThreadExchangeStreamCaptureMode = nullptr;
  decltype(&::cuStreamBeginCapture) cuStreamBeginCapture = nullptr;
  decltype(&::cuStreamEndCapture) cuStreamEndCapture = nullptr;
  decltype(&::cuGraphInstantiate) cuGraphInstantiate = nullptr;
  decltype(&::cuGraphLaunch) cuGraphLaunch = nullptr;
  decltype(&::cuGraphExecDestroy) cuGraphExecDestroy = nullptr;
  decltype(&::cuGraphDestroy) cuGraphDestroy = nullptr;
  // Legacy interprocess communication.
  decltype(&::cuIpcGetEventHandle) cuIpcGetEventHandle = nullptr;
  decltype(&::cuIpcOpenEventHandle) cuIpcOpenEventHandle = nullptr;
  decltype(&::cuIpcGetMemHandle) cuIpcGetMemHandle = nullptr;
  decltype(&::cuIpcOpenMemHandle) cuIpcOpenMemHandle = nullptr;
  decltype(&::cuIpcCloseMemHandle) cuIpcCloseMemHandle = nullptr;
  // Kernels.
  decltype(&::cuModuleLoadData) cuModuleLoadData = nullptr;
  decltype(&::cuModuleUnload) cuModuleUnload = nullptr;
  decltype(&::cuModuleGetFunction) cuModuleGetFunction = nullptr;
  decltype(&::cuLaunchKernel) cuLaunchKernel = nullptr;
  decltype(&::cuLibraryLoadData) cuLibraryLoadData = nullptr;
  decltype(&::cuLibraryGetKernel) cuLibraryGetKernel = nullptr;
};

enum class EntryNeed {
  kRequired,  // Every driver from CUDA 11.3 on has it; loading fails without.
  kOptional,  // Newer drivers only, or absent from the host-memory driver.
};

// Names one entry point: the member that holds it, the name and the CUDA
// version under which cuGetProcAddress knows the signature of that member.
template <auto Member>
struct DriverEntry {
  static constexpr auto kMember = Member;
  const char* name;
  int version;  // As in CUDA_VERSION: 11040 is CUDA 11.4.
  EntryNeed need;
};

// Calls `visit` with the DriverEntry of every member of DriverTable.
template <typename Visitor>
constexpr void ForEachDriverEntry(Visitor&& visit) {
  using T = DriverTable;
  constexpr EntryNeed kRequired = EntryNeed::kRequired;
  constexpr EntryNeed kOptional = EntryNeed::kOptional;
  visit(DriverEntry<&T::cuInit>{"cuInit", 2000, kRequired});
  visit(DriverEntry<&T::cuDriverGetVersion>{"cuDriverGetVersion", 2020,
                                            kRequired});
  visit(DriverEntry<&T::cuGetErrorName>{"cuGetErrorName", 6000, kRequired});
  visit(DriverEntry<&T::cuGetErrorString>{"cuGetErrorString", 6000, kRequired});
  visit(DriverEntry<&T::cuDeviceGetCount>{"cuDeviceGetCount", 2000, kRequired});
  visit(DriverEntry<&T::cuDeviceGet>{"cuDeviceGet", 2000, kRequired});
  visit(DriverEntry<&T::cuDeviceGetName>{"cuDeviceGetName", 2000, kRequired});
  visit(
      DriverEntry<&T::device_get_gpu_uuid>{"cuDeviceGetUuid", 9020, kRequired});
  visit(DriverEntry<&T::device_get_mig_uuid>{"cuDeviceGetUuid", 11040,
                                             kOptional});
  visit(DriverEntry<&T::cuDeviceTotalMem>{"cuDeviceTotalMem", 3020, kRequired});
  visit(DriverEntry<&T::cuDeviceGetAttribute>{"cuDeviceGetAttribute", 2000,
                                              kRequired});
  visit(DriverEntry<&T::cuDeviceCanAccessPeer>{"cuDeviceCanAccessPeer", 4000,
                                               kRequired});
  visit(DriverEntry<&T::cuDeviceGetP2PAttribute>{"cuDeviceGetP2PAttribute",
                                                 8000, kOptional});
  visit(DriverEntry<&T::cuDeviceGetFabricClusterUuid>{
      "cuDeviceGetFabricClusterUuid", 13040, kOptional});
  visit(DriverEntry<&T::cuDeviceGetCliqueCount>{"cuDeviceGetCliqueCount", 13040,
                                                kOptional});
  visit(DriverEntry<&T::cuDeviceGetCliqueInfo>{"cuDeviceGetCliqueInfo", 13040,
                                               kOptional});
  visit(DriverEntry<&T::cuDevicePrimaryCtxRetain>{"cuDevicePrimaryCtxRetain",
                                                  7000, kRequired});
  visit(DriverEntry<&T::cuDevicePrimaryCtxRelease>{"cuDevicePrimaryCtxRelease",
                                                   11000, kRequired});
  visit(DriverEntry<&T::cuDevicePrimaryCtxReset>{"cuDevicePrimaryCtxReset",
                                                 11000, kOptional});
  visit(DriverEntry<&T::cuDevicePrimaryCtxGetState>{
      "cuDevicePrimaryCtxGetState", 7000, kRequired});
  visit(DriverEntry<&T::cuCtxGetCurrent>{"cuCtxGetCurrent", 4000, kRequired});
  visit(DriverEntry<&T::cuCtxSetCurrent>{"cuCtxSetCurrent", 4000, kRequired});
  visit(DriverEntry<&T::cuCtxPushCurrent>{"cuCtxPushCurrent", 4000, kRequired});
  visit(DriverEntry<&T::cuCtxPopCurrent>{"cuCtxPopCurrent", 4000, kRequired});
  visit(DriverEntry<&T::cuCtxGetDevice>{"cuCtxGetDevice", 2000, kRequired});
  visit(DriverEntry<&T::cuCtxSynchronize>{"cuCtxSynchronize", 2000, kRequired});
  visit(DriverEntry<&T::cuMemGetAllocationGranularity>{
      "cuMemGetAllocationGranularity", 10020, kRequired});
  visit(DriverEntry<&T::cuMemCreate>{"cuMemCreate", 10020, kRequired});
  visit(DriverEntry<&T::cuMemRelease>{"cuMemRelease", 10020, kRequired});
  visit(DriverEntry<&T::cuMemRetainAllocationHandle>{
      "cuMemRetainAllocationHandle", 11000, kRequired});
  visit(DriverEntry<&T::cuMemGetAllocationPropertiesFromHandle>{
      "cuMemGetAllocationPropertiesFromHandle", 10020, kRequired});
  visit(DriverEntry<&T::cuMemAddressReserve>{"cuMemAddressReserve", 10020,
                                             kRequired});
  visit(
      DriverEntry<&T::cuMemAddressFree>{"cuMemAddressFree", 10020, kRequired});
  visit(DriverEntry<&T::cuMemMap>{"cuMemMap", 10020, kRequired});
  visit(DriverEntry<&T::cuMemUnmap>{"cuMemUnmap", 10020, kRequired});
  visit(DriverEntry<&T::cuMemSetAccess>{"cuMemSetAccess", 10020, kRequired});
  visit(DriverEntry<&T::cuMemGetAccess>{"cuMemGetAccess", 10020, kRequired});
  visit(DriverEntry<&T::cuMemExportToShareableHandle>{
      "cuMemExportToShareableHandle", 10020, kRequired});
  visit(DriverEntry<&T::cuMemImportFromShareableHandle>{
      "cuMemImportFromShareableHandle", 10020, kRequired});
  visit(DriverEntry<&T::cuMemGetHandleForAddressRange>{
      "cuMemGetHandleForAddressRange", 11070, kOptional});
  visit(DriverEntry<&T::cuMemGetInfo>{"cuMemGetInfo", 3020, kRequired});
  visit(DriverEntry<&T::cuMemAlloc>{"cuMemAlloc", 3020, kRequired});
  visit(DriverEntry<&T::cuMemFree>{"cuMemFree", 3020, kRequired});
  visit(DriverEntry<&T::cuMemHostAlloc>{"cuMemHostAlloc", 2020, kRequired});
  visit(DriverEntry<&T::cuMemFreeHost>{"cuMemFreeHost", 2000, kRequired});
  visit(DriverEntry<&T::cuMemAllocAsync>{"cuMemAllocAsync", 11020, kOptional});
  visit(DriverEntry<&T::cuMemFreeAsync>{"cuMemFreeAsync", 11020, kOptional});
  visit(DriverEntry<&T::cuMemAllocFromPoolAsync>{"cuMemAllocFromPoolAsync",
                                                 11020, kOptional});
  visit(DriverEntry<&T::cuDeviceGetDefaultMemPool>{"cuDeviceGetDefaultMemPool",
                                                   11020, kOptional});
  visit(DriverEntry<&T::cuDeviceGetMemPool>{"cuDeviceGetMemPool", 11020,
                                            kOptional});
  visit(DriverEntry<&T::cuDeviceSetMemPool>{"cuDeviceSetMemPool", 11020,
                                            kOptional});
  visit(DriverEntry<&T::cuMemPoolCreate>{"cuMemPoolCreate", 11020, kOptional});
  visit(
      DriverEntry<&T::cuMemPoolDestroy>{"cuMemPoolDestroy", 11020, kOptional});
  visit(DriverEntry<&T::cuMemPoolSetAccess>{"cuMemPoolSetAccess", 11020,
                                            kOptional});
  visit(DriverEntry<&T::cuMemPoolGetAccess>{"cuMemPoolGetAccess", 11020,
                                            kOptional});
  visit(DriverEntry<&T::cuMemPoolSetAttribute>{"cuMemPoolSetAttribute", 11020,
                                               kOptional});
  visit(DriverEntry<&T::cuMemPoolGetAttribute>{"cuMemPoolGetAttribute", 11020,
                                               kOptional});
  visit(DriverEntry<&T::cuMemPoolTrimTo>{"cuMemPoolTrimTo", 11020, kOptional});
  visit(DriverEntry<&T::cuMemPoolExportToShareableHandle>{
      "cuMemPoolExportToShareableHandle", 11020, kOptional});
  visit(DriverEntry<&T::cuMemPoolImportFromShareableHandle>{
      "cuMemPoolImportFromShareableHandle", 11020, kOptional});
  visit(DriverEntry<&T::cuMemPoolExportPointer>{"cuMemPoolExportPointer", 11020,
                                                kOptional});
  visit(DriverEntry<&T::cuMemPoolImportPointer>{"cuMemPoolImportPointer", 11020,
                                                kOptional});
  visit(DriverEntry<&T::cuMemGetAddressRange>{"cuMemGetAddressRange", 3020,
                                              kRequired});
  visit(DriverEntry<&T::cuPointerGetAttribute>{"cuPointerGetAttribute", 4000,
                                               kRequired});
  visit(DriverEntry<&T::cuPointerGetAttributes>{"cuPointerGetAttributes", 7000,
                                                kRequired});
  visit(DriverEntry<&T::cuMemcpyHtoD>{"cuMemcpyHtoD", 3020, kRequired});
  visit(DriverEntry<&T::cuMemcpyDtoH>{"cuMemcpyDtoH", 3020, kRequired});
  visit(DriverEntry<&T::cuMemcpyDtoD>{"cuMemcpyDtoD", 3020, kRequired});
  visit(
      DriverEntry<&T::cuMemcpyHtoDAsync>{"cuMemcpyHtoDAsync", 3020, kRequired});
  visit(
      DriverEntry<&T::cuMemcpyDtoHAsync>{"cuMemcpyDtoHAsync", 3020, kRequired});
  visit(
      DriverEntry<&T::cuMemcpyDtoDAsync>{"cuMemcpyDtoDAsync", 3020, kRequired});
  visit(DriverEntry<&T::cuMemsetD8>{"cuMemsetD8", 3020, kRequired});
  visit(DriverEntry<&T::cuMemsetD32>{"cuMemsetD32", 3020, kRequired});
  visit(DriverEntry<&T::cuMemsetD8Async>{"cuMemsetD8Async", 3020, kRequired});
  visit(DriverEntry<&T::cuMemsetD32Async>{"cuMemsetD32Async", 3020, kRequired});
  visit(DriverEntry<&T::cuStreamCreate>{"cuStreamCreate", 2000, kRequired});
  visit(DriverEntry<&T::cuStreamDestroy>{"cuStreamDestroy", 4000, kRequired});
  visit(DriverEntry<&T::cuStreamQuery>{"cuStreamQuery", 2000, kRequired});
  visit(DriverEntry<&T::cuStreamSynchronize>{"cuStreamSynchronize", 2000,
                                             kRequired});
  visit(
      DriverEntry<&T::cuStreamWaitEvent>{"cuStreamWaitEvent", 3020, kRequired});
  visit(DriverEntry<&T::cuStreamGetCtx>{"cuStreamGetCtx", 9020, kRequired});
  visit(DriverEntry<&T::cuStreamWriteValue64>{"cuStreamWriteValue64", 11070,
                                              kRequired});
  visit(DriverEntry<&T::cuStreamWaitValue64>{"cuStreamWaitValue64", 11070,
                                             kRequired});
  visit(
      DriverEntry<&T::cuLaunchHostFunc>{"cuLaunchHostFunc", 10000, kRequired});
  visit(DriverEntry<&T::cuEventCreate>{"cuEventCreate", 2000, kRequired});
  visit(DriverEntry<&T::cuEventRecord>{"cuEventRecord", 2000, kRequired});
  visit(DriverEntry<&T::cuEventQuery>{"cuEventQuery", 2000, kRequired});
  visit(DriverEntry<&T::cuEventSynchronize>{"cuEventSynchronize", 2000,
                                            kRequired});
  visit(DriverEntry<&T::cuEventDestroy>{"cuEventDestroy", 4000, kRequired});
  visit(DriverEntry<&T::cuStreamIsCapturing>{"cuStreamIsCapturing", 10000,
                                             kRequired});
  visit(DriverEntry<&T::cuThreadExchangeStreamCaptureMode>{
      "cuThreadExchangeStreamCaptureMode", 10010, kRequired});
  visit(DriverEntry<&T::cuStreamBeginCapture>{"cuStreamBeginCapture", 10010,
                                              kOptional});
  visit(DriverEntry<&T::cuStreamEndCapture>{"cuStreamEndCapture", 10000,
                                            kOptional});
  visit(DriverEntry<&T::cuGraphInstantiate>{"cuGraphInstantiateWithFlags",
                                            11040, kOptional});
  visit(DriverEntry<&T::cuGraphLaunch>{"cuGraphLaunch", 10000, kOptional});
  visit(DriverEntry<&T::cuGraphExecDestroy>{"cuGraphExecDestroy", 10000,
                                            kOptional});
  visit(DriverEntry<&T::cuGraphDestroy>{"cuGraphDestroy", 10000, kOptional});
  visit(DriverEntry<&T::cuIpcGetEventHandle>{"cuIpcGetEventHandle", 4010,
                                             kOptional});
  visit(DriverEntry<&T::cuIpcOpenEventHandle>{"cuIpcOpenEventHandle", 4010,
                                              kOptional});
  visit(
      DriverEntry<&T::cuIpcGetMemHandle>{"cuIpcGetMemHandle", 4010, kOptional});
  visit(DriverEntry<&T::cuIpcOpenMemHandle>{"cuIpcOpenMemHandle", 11000,
                                            kOptional});
  visit(DriverEntry<&T::cuIpcCloseMemHandle>{"cuIpcCloseMemHandle", 4010,
                                             kOptional});
  visit(DriverEntry<&T::cuModuleLoadData>{"cuModuleLoadData", 2000, kOptional});
  visit(DriverEntry<&T::cuModuleUnload>{"cuModuleUnload", 2000, kOptional});
  visit(DriverEntry<&T::cuModuleGetFunction>{"cuModuleGetFunction", 2000,
                                             kOptional});
  visit(DriverEntry<&T::cuLaunchKernel>{"cuLaunchKernel", 4000, kOptional});
  visit(DriverEntry<&T::cuLibraryLoadData>{"cuLibraryLoadData", 12000,
                                           kOptional});
  visit(DriverEntry<&T::cuLibraryGetKernel>{"cuLibraryGetKernel", 12000,
                                            kOptional});
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_DRIVER_TABLE_H_
