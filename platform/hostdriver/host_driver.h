// The host-memory driver: the CUDA driver calls that vmmshare uses, on host
// memory, for machines without a GPU.
//
// A shared library of our own (libvmmshare_hostdriver.so, never named libcuda)
// that a program loads explicitly, by its path:
//
//   absl::StatusOr<Driver> driver =
//       Driver::LoadFrom("/.../libvmmshare_hostdriver.so");
//
// It models NVIDIA's driver 580 (CUDA 13.0) on an H100: error codes included,
// as measured; tests/conformance runs the same suite on both. It works across
// unrelated processes, because device memory is a sealed memfd and an exported
// handle is a descriptor of it. Legacy CUDA IPC memory and stream-ordered pools
// are there too, so that every way of sharing can be compared without a GPU.
// Its kernels are functions of the host, found by name: host_kernels.h. Programs
// that link libcuda can link it in that place; the names of their calls are
// those of cuda.h.
//
// Environment, read once, at the first cuInit that succeeds. A value that
// cannot be understood ends the program with a line that names it; vmmshare asks
// before (vmmshareHostCheckSettings), and returns INVALID_ARGUMENT.
//   VMMSHARE_HOST_DEVICES   number of devices, 0 to 64; default 2
//   VMMSHARE_HOST_MEMORY    bytes of each device; suffix K, M or G; default 4G
//   VMMSHARE_HOST_PEERS     "all" (default), "none", or pairs of device numbers
//                           that can reach each other: "0-1,1-2"
//   VMMSHARE_HOST_INSTANCE  letters, digits, '-' and '_', at most 32. Processes
//                           of one user with the same instance (default
//                           "default") see the same devices and share their
//                           memory budgets; other instances are other machines.
//   VMMSHARE_HOST_NODE      a name of the same form: another node of the
//                           instance, with devices, budgets and memory of its
//                           own. Descriptors and legacy IPC do not lead from
//                           one node to another, fabric handles do. Without it
//                           there is one node, or with VMMSHARE_HOST_FABRIC_
//                           ROOT one for each network namespace.
//   VMMSHARE_HOST_DELAY     microseconds, at most 1000000, after which work
//                           begins that was submitted without waiting: streams,
//                           fills, copies between devices; default 0. A program
//                           that tells another of its work before that is done
//                           then fails each time and not once in a while.
//   VMMSHARE_HOST_MPS       1: the device attribute says that contexts are
//                           shared through MPS; default 0. Nothing else changes.
//   VMMSHARE_HOST_COMPUTE_MODE  default, exclusive-process or prohibited: what
//                           the device attribute says. When prohibited, calls
//                           that make a context return DEVICE_UNAVAILABLE; of
//                           exclusive-process nothing else is modelled.
//   VMMSHARE_HOST_CONFIDENTIAL  1: NVML says that confidential computing is on,
//                           and no device is another's peer but those of
//                           VMMSHARE_HOST_PEERS; default 0
//   VMMSHARE_HOST_VERSION   the CUDA version of the driver to model, from 12.0
//                           to 13.5; default 13.0. Read when it is first asked
//                           for. Newer calls are not found, newer results have
//                           no name, and with documented effect: from 12.2
//                           memory of the host, from 12.3 fabric handles, from
//                           13.2 memory of a hidden device is at a location of
//                           type INVISIBLE, from 13.4 FABRIC_NOT_READY. Only
//                           13.0 was compared with a real driver.
//   VMMSHARE_HOST_LOCATION  the number of the location type that properties of
//                           device memory tell, for types yet to come; default:
//                           what the version has
//   VMMSHARE_HOST_KERNELS   the absolute path of a library that registers
//                           kernels (host_kernels.h)
//   VMMSHARE_HOST_RDMA      what memory with gpuDirectRDMACapable is: works
//                           (default, as measured on H100); none: the attribute
//                           is 0 and cuMemCreate returns INVALID_DEVICE;
//                           refused: the attribute is 1 all the same (GB10);
//                           no-access: cuMemSetAccess returns UNKNOWN (WSL2);
//                           forgotten: it is made without the flag
//   VMMSHARE_HOST_DMA_BUF   0: the attribute says that there are no dma-bufs;
//                           default 1, on Windows always 0
//   VMMSHARE_HOST_FAIL      failures to inject, as for vmmshareHostFail()
//   CUDA_VISIBLE_DEVICES    as NVIDIA's driver reads it
//   CUDA_DEVICE_MAX_CONNECTIONS  hardware queues of a context, 1 to 32; default 8,
//                           under MPS 2. So many streams that wait stop the others
//                           as measured on an H200; fewer stop none here
//
// Fabric handles. The library is a stand-in NVML too (nvmlInit_v2 and those
// that fabric/nvml.cc asks). Its answers, and the driver's, come from these,
// each one value for all devices or one for each, separated by ',', of which
// the last stands for the rest:
//   VMMSHARE_HOST_FABRIC_STATE    not-supported, not-started, in-progress or
//                                 completed (default, as measured on H100)
//   VMMSHARE_HOST_FABRIC_STATUS   NVML's result of joining; default 0
//   VMMSHARE_HOST_FABRIC_CLUSTER  a UUID; default all zero, as on H100
//   VMMSHARE_HOST_FABRIC_CLIQUE   a number; default 0
//   VMMSHARE_HOST_FABRIC_HEALTH   NVML's health mask; default 0
//   VMMSHARE_HOST_MIG             1: MIG mode is on; default 0
// From VMMSHARE_HOST_VERSION=13.4 on the driver itself tells cluster and cliques
// (cuDeviceGetFabricClusterUuid and its kin, by cuGetProcAddress alone).
// And these, for all devices:
//   VMMSHARE_HOST_NVML_FAIL       entries and the NVML result that each call of
//                                 them answers: "nvmlInit_v2:9"
//   VMMSHARE_HOST_FABRIC_ROOT     a folder in whose /dev and /proc IMEX is
//                                 looked for, as `vmmshare doctor --root` does;
//                                 "/" is the system. Default: there is no IMEX.
//   VMMSHARE_HOST_FABRIC_GRANULARITY  bytes, a multiple of 2M (default), of
//                                 which memory with fabric handles has a
//                                 multiple; the suffixes of _MEMORY
// Without VMMSHARE_HOST_FABRIC_ROOT fabric handles are refused as on an H100:
// cuMemCreate returns CUDA_ERROR_NOT_PERMITTED, the import NOT_SUPPORTED. With
// it they work between processes and nodes if all of these hold, on both sides:
//   - The device has joined (state, status, not MIG) a cluster that is not
//     zero. Otherwise: cuMemCreate NOT_PERMITTED, import NOT_SUPPORTED if it
//     holds for no visible device.
//   - /proc/devices has the class nvidia-caps-imex-channels, and a node
//     /dev/nvidia-caps-imex-channels/channelN of it can be opened. The exporter
//     uses the lowest N; the importer must be able to open the same. Otherwise:
//     NOT_PERMITTED.
//   - A process nvidia-imex is in /proc (a link to the process's own folder
//     there makes it one that can die). Otherwise: cuMemCreate and the export
//     NOT_PERMITTED, the import INVALID_HANDLE.
// The importer must have a device of the exporter's cluster and clique, and the
// exporter must still have the memory. Otherwise, and for bytes that are no
// handle: INVALID_HANDLE. Access for a device of another clique:
// INVALID_DEVICE. Within a node the importer must see the memory's device:
// INVALID_DEVICE. Host memory has no fabric handles: NOT_SUPPORTED.
// Measured of a real driver: the refusal without IMEX. Documented (cuda.h): the
// channel. All else follows reports of others, named in fabric_memory.cc, and
// has not been compared with multi-node hardware.
//
// What CUDA leaves undefined ends the program with one line on standard error
// and abort(): a handle released twice or never issued, unmapping addresses
// where nothing is mapped, a stream, event or pool destroyed twice, memory of a
// pool freed twice by cuMemFreeAsync (unless the pool has handed the address
// out again meanwhile). Handle values are never reused, so a stale one is
// always found.
//
// cuDevicePrimaryCtxReset ends the context as the last release does, and leaves
// the releases owed, as cuda.h has it. Measured: the releases, and what is answered
// to who has it current. Not measured: what becomes of its memory and streams.
//
// Known differences from the real driver:
//   - Virtual memory, and copies that wait, are refused beside the capture of a
//     stream, on purpose; driver 580 takes them.
//   - Copies and fills that wait are CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED beside
//     the capture of a blocking stream by a thread that is not relaxed (580:
//     CUDA_ERROR_STREAM_CAPTURE_IMPLICIT).
//   - cuMemAddressReserve with an address that is no multiple of the alignment is
//     refused at times (580: other addresses).
//   - cuMemMap past the end of a reservation is refused (580 accepts it).
//   - cuMemUnmap where nothing is mapped ends the program (580 answers
//     CUDA_SUCCESS), and so does a second cuMemRelease (580: INVALID_VALUE, or
//     a crash).
//   - Access for a device that is no peer of the memory's device:
//     CUDA_ERROR_INVALID_DEVICE, which no measurement backs.
//   - The host's access to host memory, asked for before it was ever set, is
//     none (580 answers read and write, although the CPU faults).
//   - CU_STREAM_PER_THREAD is not supported.
//   - A module has every kernel that is registered, whatever its image says; an
//     image is only looked at as far as to tell that it may be one. Launches
//     take their arguments one by one ("extra": NOT_SUPPORTED).
//   - Access that cuCtxEnablePeerAccess gives is noted, not needed.
//   - A capture has one stream: another one that waits for an event recorded in
//     it is refused (CUDA_ERROR_NOT_SUPPORTED). A graph does its work in order.
//     Which calls are potentially unsafe beside a capture is capture.cc's list.
//   - A graph has no memory of its own: cuMemAllocAsync and
//     cuMemAllocFromPoolAsync on a captured stream are refused
//     (CUDA_ERROR_NOT_SUPPORTED), and the capture goes on. cuMemFreeAsync there
//     is refused as 580 refuses it, since the graph has allocated nothing.
//   - cuGetProcAddress knows the signatures of platform/cuda/driver_table.h, not
//     the older ones of the same names.
//   - An interprocess event cannot be opened once its maker destroyed it.
//   - Processes that share a budget lock it. One that is stopped while it holds
//     the lock makes cuMemCreate, or cuInit, of the others answer
//     CUDA_ERROR_TIMEOUT after three seconds.
//   - Every allocation takes a descriptor of the process.
//   - The descriptor of a range (cuMemGetHandleForAddressRange) is no dma-buf:
//     it is another descriptor of the first chunk's whole memory, which can
//     also be imported as such: what must be refused of a dma-buf is not seen
//     here.
//   - A legacy IPC handle of memory that was freed opens nothing (580: often
//     what lies at the old address by then, whoever's data that is).
//   - A legacy IPC handle opens one allocation only. The real driver exposes
//     the whole 2 MiB block that small allocations share.
//   - Legacy IPC handles and exported pointers of pools are opened through the
//     process that made them, by its number: both must run as one user and, on
//     Linux, in one PID namespace. What is open outlives that process, but
//     nothing can be opened once it has ended.
//   - Fabric handles are opened through the process that made them too, by its
//     number: all nodes are of one host, one user and one PID namespace. A
//     daemon that dies on the exporter's node alone does not stop an import.
//   - Legacy IPC for a device that is no peer: CUDA_ERROR_MAP_FAILED. Handles
//     that name nothing: CUDA_ERROR_INVALID_VALUE.
//   - Pools have device memory only: host pools are CUDA_ERROR_NOT_SUPPORTED. A
//     pool for fabric handles can be made everywhere, and is never exported.
//   - A range of a pool's memory that goes over two pieces which the pool had from
//     the driver has no descriptor (580 gives one of some).
//   - A pool reuses what another stream freed once that is done, whatever the
//     CU_MEMPOOL_ATTR_REUSE_* say, but for one thing: with ALLOW_INTERNAL_
//     DEPENDENCIES, and no other memory left, it makes the stream wait. It
//     follows no event dependencies.
//   - A pool takes 32 MiB at once, or what is asked for if that is more.
//   - A pointer that its exporter freed can still be imported, as long as the
//     pool holds the memory; CUDA leaves this undefined. One pointer is
//     imported once at a time.
//   - cuMemFreeAsync takes memory of pools only.
//   - A forked child keeps no memory of a device alive but by descriptors that
//     the program itself had (exports), or where another thread was within a call
//     of the driver when it forked.
//   - Memory whose only reference is a descriptor in flight in a socket is not
//     counted against the budget.
//   - A stream that waits for a value when it is destroyed goes on waiting in
//     the background, until its context or the process ends.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_HOST_DRIVER_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_HOST_DRIVER_H_

#include <cstddef>
#include <cstdint>

// What this process holds of the driver at present, and did not give back.
struct VmmshareHostLedger {
  std::uint64_t handles;  // Allocation handles, imported ones included.
  std::uint64_t imported_handles;  // Those that came from an import.
  std::uint64_t references;        // Releases that are still owed.
  std::uint64_t mappings;
  std::uint64_t reservations;
  std::uint64_t bytes;  // Of created memory that a handle or mapping keeps.
  std::uint64_t streams;
  std::uint64_t events;
  std::uint64_t contexts;       // Releases of primary ones owed, and made ones.
  std::uint64_t device_blocks;  // cuMemAlloc.
  std::uint64_t host_blocks;    // cuMemHostAlloc, cuMemAllocManaged.
  std::uint64_t legacy_opens;   // Closes owed for cuIpcOpenMemHandle.
  std::uint64_t pools;          // Made or imported, and not destroyed.
  std::uint64_t pool_blocks;    // cuMemAllocAsync, cuMemPoolImportPointer.
};

// These are looked up by name in the library (dlsym), not through
// cuGetProcAddress. All are thread-safe.
extern "C" {

// The version of this driver. Its presence tells it from NVIDIA's.
int vmmshareHostDriverVersion();

// Answers 0, also once the environment was read, 1 (CUDA_ERROR_INVALID_VALUE) where
// that has a value that cannot be understood, so that cuInit would end the program,
// or 2 (CUDA_ERROR_OUT_OF_MEMORY). `why`, of `size` bytes,
// has the line that names it then, ended by a zero.
int vmmshareHostCheckSettings(char* why, std::size_t size);

// Writes the first `size` bytes of the ledger (sizeof(VmmshareHostLedger)).
// Answers 0, or 1 (CUDA_ERROR_INVALID_VALUE) for null or a larger size.
int vmmshareHostLedger(VmmshareHostLedger* ledger, std::size_t size);

// Replaces the failures to inject, and counts calls anew from here. Rules are
// separated by ';':
//   cuMemMap:3:OUT_OF_MEMORY    the third call of cuMemMap reports that
//   cuMemMap:3+:OUT_OF_MEMORY   the third and every later one
//   *:7:UNKNOWN                 the seventh driver call, whichever it is
// A call that fails so does nothing else. cuGetErrorName, cuGetErrorString,
// cuDriverGetVersion and cuGetProcAddress do not fail and are not counted.
// cuMemcpy and cuMemcpyAsync count, and fail, as what they turn out to be:
// cuMemcpyHtoD, DtoH or DtoD, or HtoDAsync and so on; by their own names only
// where none of the memory is the driver's. Null or "" injects nothing. Answers
// 0, or 1 (CUDA_ERROR_INVALID_VALUE, and nothing changes) when `rules` cannot be
// understood, or name a call that this driver has not.
int vmmshareHostFail(const char* rules);

// The number of calls of the entry `name` ("*": of all) since the last
// vmmshareHostFail(), or since the library was loaded.
std::uint64_t vmmshareHostCalls(const char* name);

}  // extern "C"

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_HOST_DRIVER_H_
