// PieceKernel: one kernel over many pieces of a device's memory; internal to vmm/.
//
// What it works on travels in the kernel's parameters, so that no table has to stay
// anywhere.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_PIECE_KERNEL_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_PIECE_KERNEL_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/kernel_library.h"

namespace vmm::weights {

// `to` is what the kernel makes of it.
struct DevicePiece {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  std::uint64_t bytes = 0;
};

// Thread-safe.
class PieceKernel {
 public:
  // Pieces of one launch: their table is as large as a kernel's parameters may be,
  // less a few bytes.
  static constexpr std::size_t kMost = 1168;
  // Bytes that a part of the grid takes at once, as the kernels have it: of copies a
  // block does, 16 bytes a thread (measured: smaller and larger ones, and several
  // loads a thread, are slower).
  static constexpr std::uint64_t kTile = 16384;

  // The kernel `name` of `ptx`, text that stays where it is; its one parameter is the
  // table. Cheap but for the first time. As KernelLibrary::Of(), and UNIMPLEMENTED
  // also with drivers before CUDA 12.1, whose kernels have less room for parameters.
  static absl::StatusOr<PieceKernel> Load(const Device& device, const char* ptx,
                                          const char* name);

  // Puts the work on `stream` of the device, in no order among the pieces. Of none
  // it is a launch that does nothing, by which the driver loads the kernel.
  // REQUIRES: the device may read and write there, and none is of 0 bytes.
  absl::Status Run(CUstream stream, absl::Span<const DevicePiece> pieces) const;

 private:
  PieceKernel(KernelLibrary library, CUfunction kernel, unsigned int blocks)
      : library_(std::move(library)), kernel_(kernel), blocks_(blocks) {}

  KernelLibrary library_;
  CUfunction kernel_;
  unsigned int blocks_;
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_PIECE_KERNEL_H_
