// What a run found: figures, tables, charts and targets.
#ifndef VMMSHARE_BENCH_COMPARE_RESULTS_H_
#define VMMSHARE_BENCH_COMPARE_RESULTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace bench::compare {

// One figure: the times of equal work, in the order measured.
struct Metric {
  std::string name;        // "first/legacy/2MiB/same/import".
  std::vector<double> ns;  // Of one operation each.
  // CPU time of one operation; negative: not measured.
  double cpu_ns = -1;
  std::uint64_t operations = 1;  // Behind each number of `ns`.
  std::map<std::string, double> counters = {};
};

struct Table {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> notes;
};

// A line chart with logarithmic axes, or bars.
struct Chart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points = {};
  };
  std::string file;  // Of its plot, without folder and ".svg".
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string note = {};  // In a corner.
  bool x_is_bytes = false;
  bool y_is_time = true;  // Nanoseconds; else plain numbers.
  // Lines.
  std::vector<Series> series;
  // Bars, when `series` is empty.
  std::vector<std::pair<std::string, double>> bars;
  bool logarithmic = true;
};

// A number of the issue "pool and benchmark", "Speed and memory".
struct Target {
  std::string name;
  std::optional<double> measured;
  double floor = 0;
  double aim = 0;
  bool at_least = true;  // Else at most.
  const char* unit = "";
  std::string remark;   // How it was measured, or why it was not.
  bool applies = true;  // False: it is shown, and not enforced.

  bool Meets(double bound) const {
    return measured.has_value() &&
           (at_least ? *measured >= bound : *measured <= bound);
  }
};

// The worse of two targets that differ in what was measured, and for which
// subscriber; the remark says which it is. Not measured where one is not.
Target WorseOf(const Target& early, const Target& late);
// Of `target` where each subscriber has its measure.
Target WorseOf(const Target& target, std::optional<double> early,
               std::optional<double> late);

struct Results {
  std::vector<std::pair<std::string, std::string>> context;
  std::vector<Metric> metrics;
  std::vector<Table> tables;
  std::vector<Chart> charts;
  std::vector<Target> targets;
};

// Text for people: "12.3 us", "2.0 MiB", "41x", "3.1 %".
std::string TimeText(double ns);
std::string RatioText(double ratio);
// "-" where there is nothing.
std::string TimeTextOr(const std::vector<double>& samples, double percent);
// "48.0 KiB".
std::string BytesText(double bytes);
inline std::string BytesText(std::uint64_t bytes) {
  return BytesText(static_cast<double>(bytes));
}
// "64KiB", as benchmarks are named.
std::string SizeName(std::uint64_t bytes);

double Median(const std::vector<double>& samples);

// As aligned columns, or in Markdown.
std::string ToText(const Table& table, bool markdown);

// Google Benchmark's format: "context" and "benchmarks". Of each metric up to
// 9 repetitions (means of the samples in order), then mean, median, stddev and
// p99 over all samples. "charts" are beside them, for bench/plot.py.
std::string ToJson(const Results& results);

// What was measured of each, and the verdict.
Table ToTable(const std::vector<Target>& targets);
// How many floors are missed or were not measured.
std::size_t Missed(const std::vector<Target>& targets);

// Context, tables and targets as a section of a document. `plots` is the
// folder of the plots from there; empty: none.
std::string ToMarkdown(const Results& results, const std::string& plots);

absl::Status WriteFile(const std::string& path, const std::string& text);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_RESULTS_H_
