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

// One subject measured both ways, alternating, in microseconds.
struct Comparison {
  std::string name;
  std::vector<double> vmmshare;
  std::vector<double> bare;
};

// The value that `percent` of the samples do not exceed. REQUIRES: not empty.
double Percentile(std::vector<double> samples, double percent);

// vmmshare over bare, at `percent`. 0 without samples.
double Ratio(const Comparison& comparison, double percent);

// "2.0 MiB".
std::string SizeText(std::uint64_t bytes);

// Prints a table, one row a comparison, and what exceeds kLargestRatio.
// Returns how many rows exceed it at p50.
std::size_t PrintTable(const std::vector<Comparison>& comparisons);

}  // namespace bench

#endif  // VMMSHARE_BENCH_REPORT_H_
