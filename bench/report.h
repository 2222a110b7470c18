// Samples of vmmshare and of the bare calls side by side, and the table.
#ifndef VMMSHARE_BENCH_REPORT_H_
#define VMMSHARE_BENCH_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// The target: at most 5 % over the bare driver calls.
inline constexpr double kLargestRatio = 1.05;

// One subject measured in turns, in microseconds: by vmmshare, by bare calls,
// and by the same bare calls once more. The two bare ones differ by noise
// alone, so what they differ by is what the third cannot be told from.
struct Comparison {
  std::string name;
  std::vector<double> vmmshare;
  std::vector<double> bare;
  std::vector<double> bare_again;
};

// The value that `percent` of the samples do not exceed. REQUIRES: not empty.
double Percentile(std::vector<double> samples, double percent);

// vmmshare over bare, at `percent`. 0 without samples.
double Ratio(const Comparison& comparison, double percent);
// The second bare run over the first: what the ratio of equals is here.
double Noise(const Comparison& comparison, double percent);

// "2.0 MiB".
std::string SizeText(std::uint64_t bytes);

// Prints a table, one row a comparison. A row is marked where its ratio at p50,
// or at p99, exceeds kLargestRatio by more than noise does: times the distance
// of the two bare runs. Returns how many rows are marked.
std::size_t PrintTable(const std::vector<Comparison>& comparisons);

}  // namespace bench

#endif  // VMMSHARE_BENCH_REPORT_H_
