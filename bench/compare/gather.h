// Reads one word of each of many blocks, in one launch where the driver can
// run kernels.
#ifndef VMMSHARE_BENCH_COMPARE_GATHER_H_
#define VMMSHARE_BENCH_COMPARE_GATHER_H_

#include <cuda.h>

#include <vector>

#include "absl/status/status.h"
#include "bench/compare/gpu.h"

namespace bench::compare {

class Gather {
 public:
  // Loads the kernel and its buffers, so that no measured step does.
  explicit Gather(Gpu& gpu);
  ~Gather();
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  // The addresses are those of mapped device memory, on 4 bytes. Returns when
  // all was read. Without kernels (the host-memory driver): a copy for each.
  absl::Status ReadOneWordOfEach(const std::vector<CUdeviceptr>& addresses);

 private:
  Gpu& gpu_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUdeviceptr buffer_ = 0;  // Addresses, then words.
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_GATHER_H_
