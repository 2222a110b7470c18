#include "bench/compare/tensors.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "bench/compare/results.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kHidden = 2048;
constexpr std::uint64_t kExperts = 64;
constexpr std::uint64_t kExpertWidth = 768;
constexpr std::uint64_t kHeads = 4096;    // Query heads times their width.
constexpr std::uint64_t kKeyHeads = 512;  // Key and value heads likewise.
constexpr std::uint64_t kHeadWidth = 128;
constexpr std::uint64_t kWords = 151'936;  // Of the vocabulary.

// An 8-bit matrix and its scales.
void AddMatrix(std::uint64_t rows, std::uint64_t columns,
               std::vector<std::uint64_t>* sizes) {
  constexpr std::uint64_t kScaled = 128;
  sizes->push_back(rows * columns);
  sizes->push_back((rows / kScaled) * (columns / kScaled) * 4);
}

void AddLayer(std::vector<std::uint64_t>* sizes) {
  constexpr std::uint64_t kHalf = 2;  // Bytes of a 16-bit number.
  for (std::uint64_t i = 0; i < kExperts; ++i) {
    AddMatrix(kHidden, kExpertWidth, sizes);  // Gate.
    AddMatrix(kHidden, kExpertWidth, sizes);  // Up.
    AddMatrix(kExpertWidth, kHidden, sizes);  // Down.
  }
  AddMatrix(kHidden, kHeads, sizes);
  AddMatrix(kHidden, kKeyHeads, sizes);
  AddMatrix(kHidden, kKeyHeads, sizes);
  AddMatrix(kHeads, kHidden, sizes);
  sizes->push_back(kHidden * kHalf);     // Norm before attention,
  sizes->push_back(kHidden * kHalf);     // and after it.
  sizes->push_back(kHeadWidth * kHalf);  // Norms of query and key.
  sizes->push_back(kHeadWidth * kHalf);
  sizes->push_back(kHeads * kHalf);  // Biases of query and key.
  sizes->push_back(kKeyHeads * kHalf);
  sizes->push_back(kHidden * kExperts * kHalf);  // Router,
  sizes->push_back(kExperts * kHalf);            // and its bias.
}

}  // namespace

std::vector<std::uint64_t> TensorSizes(int layers, std::uint64_t max_bytes) {
  std::vector<std::uint64_t> sizes;
  sizes.push_back(kWords * kHidden * 2);
  for (int i = 0; i < layers; ++i) AddLayer(&sizes);
  sizes.push_back(kHidden * 2);
  sizes.push_back(kWords * kHidden * 2);
  const std::uint64_t total =
      std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const double scale =
      max_bytes == 0 || total <= max_bytes
          ? 1
          : static_cast<double>(max_bytes) / static_cast<double>(total);
  for (std::uint64_t& size : sizes) {
    size = static_cast<std::uint64_t>(static_cast<double>(size) * scale);
    size = std::max<std::uint64_t>(256, (size + 255) / 256 * 256);
  }
  return sizes;
}

std::string DescribeTensors(const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  const std::uint64_t total =
      std::accumulate(sorted.begin(), sorted.end(), std::uint64_t{0});
  const auto under = [&](std::uint64_t bound) {
    return std::lower_bound(sorted.begin(), sorted.end(), bound) -
           sorted.begin();
  };
  return absl::StrFormat(
      "%d tensors of a mixture-of-experts transformer in 8 bits (64 experts a "
      "layer, a scale for each 128 x 128), %s in all: %d under 4 KiB, %d of 4 "
      "KiB to 1 MiB, %d larger; median %s, largest %s",
      sizes.size(), BytesText(static_cast<double>(total)), under(4096),
      under(1 << 20) - under(4096),
      static_cast<std::ptrdiff_t>(sizes.size()) - under(1 << 20),
      BytesText(static_cast<double>(sorted[sorted.size() / 2])),
      BytesText(static_cast<double>(sorted.back())));
}

}  // namespace bench::compare
