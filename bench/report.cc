#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "platform/base/check.h"

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

double Noise(const Comparison& comparison, double percent) {
  if (comparison.bare_again.empty() || comparison.bare.empty()) return 0;
  return Percentile(comparison.bare_again, percent) /
         Percentile(comparison.bare, percent);
}

namespace {

// Whether vmmshare is over the target by more than equals are apart here.
bool IsOver(const Comparison& row, double percent) {
  const double noise = Noise(row, percent);
  return Ratio(row, percent) > kLargestRatio * std::max(noise, 1 / noise);
}

}  // namespace

std::string SizeText(std::uint64_t bytes) {
  const bool gibibytes = bytes >= std::uint64_t{1} << 30;
  return absl::StrFormat("%.1f %s",
                         static_cast<double>(bytes) /
                             static_cast<double>(gibibytes ? 1 << 30 : 1 << 20),
                         gibibytes ? "GiB" : "MiB");
}

std::size_t PrintTable(const std::vector<Comparison>& comparisons) {
  absl::PrintF("\n%-24s %10s %10s %7s %7s %10s %10s %7s %7s %7s\n", "us",
               "bare p50", "vmm p50", "ratio", "noise", "bare p99", "vmm p99",
               "ratio", "noise", "samples");
  std::size_t marked = 0;
  for (const Comparison& row : comparisons) {
    if (row.vmmshare.empty()) continue;
    const bool over50 = IsOver(row, 50);
    const bool over99 = IsOver(row, 99);
    if (over50 || over99) ++marked;
    absl::PrintF(
        "%-24s %10.2f %10.2f %7.3f %7.3f %10.2f %10.2f %7.3f %7.3f %7d%s%s\n",
        row.name, Percentile(row.bare, 50), Percentile(row.vmmshare, 50),
        Ratio(row, 50), Noise(row, 50), Percentile(row.bare, 99),
        Percentile(row.vmmshare, 99), Ratio(row, 99), Noise(row, 99),
        row.vmmshare.size(), over50 ? "  OVER p50" : "",
        over99 ? "  OVER p99" : "");
  }
  absl::PrintF(
      "noise: the same bare calls measured a second time, over the first.\n"
      "%d rows exceed the bare calls by more than %.0f %% and noise\n",
      marked, (kLargestRatio - 1) * 100);
  std::fflush(stdout);
  return marked;
}

}  // namespace bench
