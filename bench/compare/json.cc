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
void AppendEntries(const Metric& metric, std::size_t family, Json& list) {
  constexpr std::size_t kRepetitions = 9;
  const std::vector<double>& all = metric.ns;
  const std::size_t repetitions = std::min(kRepetitions, all.size());
  // `aggregate` is empty for a repetition.
  const auto append = [&](const std::string& aggregate, std::size_t index,
                          std::uint64_t iterations, double ns) {
    const bool repetition = aggregate.empty();
    Json entry;
    entry["name"] =
        repetition ? metric.name : absl::StrCat(metric.name, "_", aggregate);
    entry["family_index"] = family;
    entry["per_family_instance_index"] = 0;
    entry["run_name"] = metric.name;
    entry["run_type"] = repetition ? "iteration" : "aggregate";
    entry["repetitions"] = repetitions;
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
    entry["cpu_time"] = Number(metric.cpu_ns >= 0 ? metric.cpu_ns : ns);
    entry["time_unit"] = "ns";
    entry["cpu_time_was_measured"] = metric.cpu_ns >= 0 ? 1 : 0;
    for (const auto& [counter, value] : metric.counters) {
      entry[counter] = Number(value);
    }
    list.push_back(std::move(entry));
  };
  for (std::size_t i = 0; i < repetitions; ++i) {
    const auto from =
        all.begin() + static_cast<std::ptrdiff_t>(all.size() * i / repetitions);
    const auto to = all.begin() + static_cast<std::ptrdiff_t>(
                                      all.size() * (i + 1) / repetitions);
    append("", i, static_cast<std::uint64_t>(to - from) * metric.operations,
           Mean({from, to}));
  }
  append("mean", 0, all.size(), Mean(all));
  append("median", 0, all.size(), Percentile(all, 50));
  append("stddev", 0, all.size(), Deviation(all));
  append("p99", 0, all.size(), Percentile(all, 99));
}

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
      AppendEntries(results.metrics[i], i, json["benchmarks"]);
    }
  }
  json["charts"] = Json::array();
  for (const Chart& chart : results.charts) {
    json["charts"].push_back(ChartJson(chart));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace bench::compare
