#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/results.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.6g", value) : "0";
}

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

class MetricWriter {
 public:
  MetricWriter(const Metric& metric, std::size_t family, std::string* text)
      : metric_(metric), family_(family), text_(text) {}

  void Write() {
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
    if (text_->back() != '[') *text_ += ',';
    const bool repetition = aggregate.empty();
    const std::string name =
        repetition ? metric_.name : absl::StrCat(metric_.name, "_", aggregate);
    absl::StrAppend(text_, "\n    {\n      \"name\": ", Quoted(name),
                    ",\n      \"family_index\": ", family_,
                    ",\n      \"per_family_instance_index\": 0",
                    ",\n      \"run_name\": ", Quoted(metric_.name),
                    ",\n      \"run_type\": ",
                    repetition ? "\"iteration\"" : "\"aggregate\"",
                    ",\n      \"repetitions\": ", repetitions_);
    if (repetition) {
      absl::StrAppend(text_, ",\n      \"repetition_index\": ", index);
    } else {
      absl::StrAppend(text_, ",\n      \"aggregate_name\": ", Quoted(aggregate),
                      ",\n      \"aggregate_unit\": \"time\"");
    }
    // Where CPU time is not measured it cannot be left out: the format has it.
    const double cpu = metric_.cpu_ns >= 0 ? metric_.cpu_ns : ns;
    absl::StrAppend(
        text_, ",\n      \"threads\": 1,\n      \"iterations\": ", iterations,
        ",\n      \"real_time\": ", Number(ns),
        ",\n      \"cpu_time\": ", Number(cpu),
        ",\n      \"time_unit\": \"ns\"",
        ",\n      \"cpu_time_was_measured\": ", metric_.cpu_ns >= 0 ? 1 : 0);
    for (const auto& [counter, value] : metric_.counters) {
      absl::StrAppend(text_, ",\n      ", Quoted(counter), ": ", Number(value));
    }
    absl::StrAppend(text_, "\n    }");
  }

  const Metric& metric_;
  std::size_t family_;
  std::size_t repetitions_ = 0;
  std::string* text_;
};

}  // namespace

std::string ToJson(const Results& results) {
  std::string text = "{\n  \"context\": {";
  for (const auto& [name, value] : results.context) {
    absl::StrAppend(&text, text.back() == '{' ? "" : ",", "\n    ",
                    Quoted(name), ": ", Quoted(value));
  }
  text += "\n  },\n  \"benchmarks\": [";
  for (std::size_t i = 0; i < results.metrics.size(); ++i) {
    if (!results.metrics[i].ns.empty()) {
      MetricWriter(results.metrics[i], i, &text).Write();
    }
  }
  return text + "\n  ]\n}\n";
}

}  // namespace bench::compare
