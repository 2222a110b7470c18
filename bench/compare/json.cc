#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "bench/compare/results.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

using Json = nlohmann::ordered_json;

double Number(double value) { return std::isfinite(value) ? value : 0; }

double Mean(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) /
         static_cast<double>(samples.size());
}

double Deviation(const std::vector<double>& samples) {
  if (samples.size() < 2) return 0;
  const double mean = Mean(samples);
  double sum = 0;
  for (const double sample : samples) sum += (sample - mean) * (sample - mean);
  return std::sqrt(sum / static_cast<double>(samples.size() - 1));
}

// Appends the entries of one metric to `list`.
class MetricEntries {
 public:
  MetricEntries(const Metric& metric, std::size_t family, Json* list)
      : metric_(metric), family_(family), list_(*list) {}

  void Append() {
    constexpr std::size_t kRepetitions = 9;
    repetitions_ = std::min(kRepetitions, metric_.ns.size());
    for (std::size_t i = 0; i < repetitions_; ++i) {
      const std::size_t from = metric_.ns.size() * i / repetitions_;
      const std::size_t to = metric_.ns.size() * (i + 1) / repetitions_;
      const std::vector<double> part(
          metric_.ns.begin() + static_cast<std::ptrdiff_t>(from),
          metric_.ns.begin() + static_cast<std::ptrdiff_t>(to));
      Entry("", i, (to - from) * metric_.operations, Mean(part));
    }
    const std::uint64_t all = metric_.ns.size();
    Entry("mean", 0, all, Mean(metric_.ns));
    Entry("median", 0, all, Percentile(metric_.ns, 50));
    Entry("stddev", 0, all, Deviation(metric_.ns));
    Entry("p99", 0, all, Percentile(metric_.ns, 99));
  }

 private:
  // `aggregate` is empty for a repetition.
  void Entry(const std::string& aggregate, std::size_t index,
             std::uint64_t iterations, double ns) {
    const bool repetition = aggregate.empty();
    Json entry;
    entry["name"] =
        repetition ? metric_.name : absl::StrCat(metric_.name, "_", aggregate);
    entry["family_index"] = family_;
    entry["per_family_instance_index"] = 0;
    entry["run_name"] = metric_.name;
    entry["run_type"] = repetition ? "iteration" : "aggregate";
    entry["repetitions"] = repetitions_;
    if (repetition) {
      entry["repetition_index"] = index;
    } else {
      entry["aggregate_name"] = aggregate;
      entry["aggregate_unit"] = "time";
    }
    entry["threads"] = 1;
    entry["iterations"] = iterations;
    entry["real_time"] = Number(ns);
    // Where CPU time is not measured it cannot be left out: the format has it.
    entry["cpu_time"] = Number(metric_.cpu_ns >= 0 ? metric_.cpu_ns : ns);
    entry["time_unit"] = "ns";
    entry["cpu_time_was_measured"] = metric_.cpu_ns >= 0 ? 1 : 0;
    for (const auto& [counter, value] : metric_.counters) {
      entry[counter] = Number(value);
    }
    list_.push_back(std::move(entry));
  }

  const Metric& metric_;
  std::size_t family_;
  std::size_t repetitions_ = 0;
  Json& list_;
};

Json ChartJson(const Chart& chart) {
  Json json;
  json["file"] = chart.file;
  json["title"] = chart.title;
  json["x_label"] = chart.x_label;
  json["y_label"] = chart.y_label;
  json["note"] = chart.note;
  json["x_is_bytes"] = chart.x_is_bytes;
  json["y_is_time"] = chart.y_is_time;
  json["logarithmic"] = chart.logarithmic;
  json["series"] = Json::array();
  for (const Chart::Series& series : chart.series) {
    Json one;
    one["name"] = series.name;
    one["points"] = series.points;
    json["series"].push_back(std::move(one));
  }
  json["bars"] = chart.bars;
  return json;
}

}  // namespace

std::string ToJson(const Results& results) {
  Json json;
  json["context"] = Json::object();
  for (const auto& [name, value] : results.context) {
    json["context"][name] = value;
  }
  json["benchmarks"] = Json::array();
  for (std::size_t i = 0; i < results.metrics.size(); ++i) {
    if (!results.metrics[i].ns.empty()) {
      MetricEntries(results.metrics[i], i, &json["benchmarks"]).Append();
    }
  }
  json["charts"] = Json::array();
  for (const Chart& chart : results.charts) {
    json["charts"].push_back(ChartJson(chart));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace bench::compare
