// The conformance suite: what a CUDA driver must answer for vmmshare to work.
//
// The same tests run on the host-memory driver and on a real one
// (VMMSHARE_TEST_DRIVER), so that the first stays a model of the second. Every
// expectation was measured on an H100 with driver 580 (CUDA 13.0), unless its
// file says that it is documented only; nothing is tested that CUDA leaves
// undefined, because there a real driver crashes.
#ifndef VMMSHARE_TESTS_CONFORMANCE_CONFORMANCE_H_
#define VMMSHARE_TESTS_CONFORMANCE_CONFORMANCE_H_

#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "platform/cuda/driver_table.h"

// Found by GoogleTest: results in messages by name.
void PrintTo(CUresult result, std::ostream* out);

namespace vmm::testing {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
// The granularity measured for every kind of memory on these devices.
inline constexpr std::size_t kGranule = 2 * kMiB;
// This system's own kind of handle, a descriptor or an NT handle, and that of
// the other system.
extern const CUmemAllocationHandleType kFd;
extern const CUmemAllocationHandleType kForeignFd;

// For CUmemAllocationProp::win32HandleMetaData of memory to share as kFd.
void* HandleAttributes();
// cuMemExportToShareableHandle, for kFd, with a descriptor in an int.
CUresult ExportTo(const platform::DriverTable& cu, int* fd,
                  CUmemGenericAllocationHandle memory);

CUmemAllocationProp Properties(
    int handle_types = kFd,
    CUmemLocationType location = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0);
CUmemAccessDesc Access(
    CUmemAccess_flags flags, int id = 0,
    CUmemLocationType location = CU_MEM_LOCATION_TYPE_DEVICE);
inline constexpr CUmemAccess_flags kNoAccess = CU_MEM_ACCESS_FLAGS_PROT_NONE;
inline constexpr CUmemAccess_flags kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
inline constexpr CUmemAccess_flags kReadWrite =
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

// The entry points of the driver under test, not initialised: what a program
// sees before cuInit.
platform::DriverTable UninitialisedDriver();

// Loads the driver under test and makes device 0's primary context current.
const platform::DriverTable& DriverWithContext();

// cuMemsetD8, and waits for it: what comes next may be another process's, the
// CPU's or another stream's look at the memory, or its end.
CUresult FillAndWait(const platform::DriverTable& cu, CUdeviceptr address,
                     unsigned char value, std::size_t count);

// Counts the mismatches of a child process; its main returns failures().
class Checks {
 public:
  void Expect(const char* what, CUresult got, CUresult wanted);
  void ExpectOneOf(const char* what, CUresult got,
                   const std::vector<CUresult>& wanted);
  void ExpectTrue(const char* what, bool value);
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

// Makes memory with these properties and maps it at addresses of its own; access is
// the caller's to set. What fails is counted in `checks`.
void MapNew(const platform::DriverTable& cu, Checks* checks,
            const CUmemAllocationProp& prop,
            CUmemGenericAllocationHandle* handle, CUdeviceptr* address);

// A test with a current context on device 0. What it makes through the
// functions below is given back at its end, newest first; then nothing may be
// left.
class Conformance : public ::testing::Test {
 protected:
  Conformance();
  ~Conformance() override;

  // Calls at the end of the test.
  void Later(std::function<void()> undo) { undo_.push_back(std::move(undo)); }

  CUmemGenericAllocationHandle Create(std::size_t size = kGranule,
                                      int handle_types = kFd);
  CUmemGenericAllocationHandle CreateWith(const CUmemAllocationProp& prop,
                                          std::size_t size = kGranule);
  CUdeviceptr Reserve(std::size_t size = kGranule);
  // Maps, and unmaps at the end of the test.
  void Map(CUdeviceptr address, CUmemGenericAllocationHandle handle,
           std::size_t size = kGranule);
  void SetAccess(CUdeviceptr address, std::size_t size,
                 CUmemAccess_flags flags = kReadWrite, int device = 0);
  // New memory, mapped, with read and write access for device 0, all zero.
  CUdeviceptr Memory(std::size_t size = kGranule);
  // A descriptor of `handle`, closed at the end.
  int Export(CUmemGenericAllocationHandle handle);
  CUmemGenericAllocationHandle Import(int fd);
  CUstream MakeStream(unsigned flags = CU_STREAM_NON_BLOCKING);
  CUevent MakeEvent(unsigned flags = CU_EVENT_DISABLE_TIMING);

  // What the end of the capture answers. The graph goes.
  CUresult EndCapture(CUstream stream);
  // The capture's end, as a graph that can be launched; it goes with the test.
  CUgraphExec EndCaptureAsGraph(CUstream stream);
  CUstreamCaptureStatus StatusOf(CUstream stream);

  // `count` bytes from device memory.
  std::vector<std::uint8_t> Bytes(CUdeviceptr address, std::size_t count);
  std::uint64_t Word(CUdeviceptr address);
  unsigned long long AccessOf(CUdeviceptr address, int device = 0);
  // The current context.
  CUcontext Current();
  int DeviceCount();
  // Whether cuMemCreate makes memory with fabric handles on device 0.
  bool HasFabric();
  std::size_t FreeMemory();

  const platform::DriverTable& cu;

 private:
  std::vector<std::function<void()>> undo_;
  std::vector<std::uint64_t> ledger_before_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_CONFORMANCE_H_
