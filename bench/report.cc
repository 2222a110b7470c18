#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "platform/check.h"

namespace bench {

double Percentile(std::vector<double> samples, double percent) {
  vmm::platform::Check(!samples.empty(), "a percentile needs samples");
  const auto rank = static_cast<std::ptrdiff_t>(
      std::ceil(percent / 100 * static_cast<double>(samples.size())));
  const auto wanted = samples.begin() + std::max<std::ptrdiff_t>(rank - 1, 0);
  std::nth_element(samples.begin(), wanted, samples.end());
  return *wanted;
}

double Ratio(const Comparison& comparison, double percent) {
  if (comparison.vmmshare.empty() || comparison.bare.empty()) return 0;
  return Percentile(comparison.vmmshare, percent) /
         Percentile(comparison.bare, percent);
}

std::string SizeText(std::uint64_t bytes) {
  const bool gibibytes = bytes >= std::uint64_t{1} << 30;
  return absl::StrFormat("%.1f %s",
                         static_cast<double>(bytes) /
                             static_cast<double>(gibibytes ? 1 << 30 : 1 << 20),
                         gibibytes ? "GiB" : "MiB");
}

std::size_t PrintTable(const std::vector<Comparison>& comparisons) {
  absl::PrintF("\n%-24s %10s %10s %8s %10s %10s %8s %7s\n", "us", "bare p50",
               "vmm p50", "ratio", "bare p99", "vmm p99", "ratio", "samples");
  std::size_t over = 0;
  for (const Comparison& row : comparisons) {
    if (row.vmmshare.empty()) continue;
    const double ratio = Ratio(row, 50);
    if (ratio > kLargestRatio) ++over;
    absl::PrintF("%-24s %10.2f %10.2f %8.3f %10.2f %10.2f %8.3f %7d%s\n",
                 row.name, Percentile(row.bare, 50),
                 Percentile(row.vmmshare, 50), ratio, Percentile(row.bare, 99),
                 Percentile(row.vmmshare, 99), Ratio(row, 99),
                 row.vmmshare.size(), ratio > kLargestRatio ? "  OVER" : "");
  }
  absl::PrintF("%d rows exceed the bare calls by more than %.0f %% at p50\n",
               over, (kLargestRatio - 1) * 100);
  std::fflush(stdout);
  return over;
}

}  // namespace bench
