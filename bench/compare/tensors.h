// The sizes of the tensors of a model.
#ifndef VMMSHARE_BENCH_COMPARE_TENSORS_H_
#define VMMSHARE_BENCH_COMPARE_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace bench::compare {

// A mixture-of-experts transformer in 8-bit floating point with a scale for
// each block of 128 x 128: hidden 2,048, 64 experts of 768 a layer, 400 tensors
// a layer, and embedding, final norm and head in 16 bits. Of 50 layers that is
// 20,003 tensors and 16.2 GiB: half of them matrices of 1.5 MiB, nearly half of
// them scales of 384 bytes.
//
// Every size is scaled down by the same factor when all together exceed
// `max_bytes` (0: no limit), and rounded up to 256 bytes.
std::vector<std::uint64_t> TensorSizes(int layers, std::uint64_t max_bytes);

// What TensorSizes() answers, in words.
std::string DescribeTensors(const std::vector<std::uint64_t>& sizes);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_TENSORS_H_
