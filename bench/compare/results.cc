#include "bench/compare/results.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

std::string NumberText(double value, const Target& of) {
  return absl::StrCat(absl::StrFormat("%.*f", value < 10 ? 3 : 1, value),
                      of.unit);
}

}  // namespace

std::string TimeText(double ns) {
  if (ns < 0) return "-";
  if (ns < 100) return absl::StrFormat("%.1f ns", ns);
  if (ns < 1e3) return absl::StrFormat("%.0f ns", ns);
  if (ns < 1e6) return absl::StrFormat("%.2f us", ns / 1e3);
  if (ns < 1e9) return absl::StrFormat("%.2f ms", ns / 1e6);
  return absl::StrFormat("%.2f s", ns / 1e9);
}

std::string RatioText(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return "-";
  if (ratio < 10) return absl::StrFormat("%.2fx", ratio);
  if (ratio < 100) return absl::StrFormat("%.1fx", ratio);
  return absl::StrFormat("%.0fx", ratio);
}

std::string TimeTextOr(const std::vector<double>& samples, double percent) {
  return samples.empty() ? "-" : TimeText(Percentile(samples, percent));
}

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (std::fabs(bytes) < 1024) return absl::StrFormat("%.0f B", bytes);
  std::size_t unit = 0;
  bytes /= 1024;
  while (std::fabs(bytes) >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string SizeName(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, kUnits[unit]);
}

double Median(const std::vector<double>& samples) {
  return samples.empty() ? 0 : Percentile(samples, 50);
}

std::string ToText(const Table& table, bool markdown) {
  std::vector<std::size_t> widths;
  widths.reserve(table.header.size());
  for (const std::string& cell : table.header) widths.push_back(cell.size());
  for (const std::vector<std::string>& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  // The first column is a name, the others are numbers.
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = markdown ? "|" : "";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - cells[i].size(), ' ');
      absl::StrAppend(&text, markdown ? " " : (i == 0 ? "  " : "   "),
                      i == 0 ? cells[i] : padding, i == 0 ? padding : cells[i],
                      markdown ? " |" : "");
    }
    return text + "\n";
  };
  std::string text = absl::StrCat("\n", markdown ? "### " : "", table.title,
                                  markdown ? "\n\n" : "\n");
  text += line(table.header);
  if (markdown) {
    text += '|';
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += i == 0 ? " --- |" : " ---: |";
    }
    text += '\n';
  }
  for (const std::vector<std::string>& row : table.rows) text += line(row);
  if (markdown && !table.notes.empty()) text += '\n';
  for (const std::string& note : table.notes) {
    absl::StrAppend(&text, markdown ? "- " : "  note: ", note, "\n");
  }
  return text;
}

Target WorseOf(const Target& early, const Target& late) {
  if (!early.measured.has_value()) return early;
  if (!late.measured.has_value()) return late;
  const bool late_is_worse = early.at_least ? *late.measured < *early.measured
                                            : *late.measured > *early.measured;
  Target worse = late_is_worse ? late : early;
  const Target& better = late_is_worse ? early : late;
  absl::StrAppend(&worse.remark, worse.remark.empty() ? "" : "; ",
                  late_is_worse ? "the late subscriber, the early one has "
                                : "the early subscriber, the late one has ",
                  NumberText(*better.measured, better));
  return worse;
}

Target WorseOf(const Target& target, std::optional<double> early,
               std::optional<double> late) {
  Target of_early = target;
  Target of_late = target;
  of_early.measured = early;
  of_late.measured = late;
  return WorseOf(of_early, of_late);
}

Table ToTable(const std::vector<Target>& targets) {
  Table table;
  table.title = "Targets";
  table.header = {"", "measured", "floor", "aim", "verdict"};
  for (const Target& target : targets) {
    const auto number = [&](double value) { return NumberText(value, target); };
    const char* const bound = target.at_least ? "at least " : "at most ";
    const char* const verdict = !target.applies               ? "not enforced"
                                : target.Meets(target.aim)    ? "pass, aim met"
                                : target.Meets(target.floor)  ? "pass"
                                : target.measured.has_value() ? "FAIL"
                                                              : "NOT MEASURED";
    table.rows.push_back(
        {target.name, target.measured ? number(*target.measured) : "-",
         bound + number(target.floor), bound + number(target.aim), verdict});
    if (!target.remark.empty()) {
      table.notes.push_back(absl::StrCat(target.name, ": ", target.remark));
    }
  }
  return table;
}

std::size_t Missed(const std::vector<Target>& targets) {
  return static_cast<std::size_t>(
      std::count_if(targets.begin(), targets.end(), [](const Target& target) {
        return target.applies && !target.Meets(target.floor);
      }));
}

std::string ToMarkdown(const Results& results, const std::string& plots) {
  std::string text;
  for (const auto& [name, value] : results.context) {
    if (!absl::StartsWith(name, "timed.")) {
      absl::StrAppend(&text, "- ", name, ": ", value, "\n");
    }
  }
  for (const Table& table : results.tables) text += ToText(table, true);
  if (!results.targets.empty()) text += ToText(ToTable(results.targets), true);
  if (plots.empty()) return text;
  for (const Chart& chart : results.charts) {
    absl::StrAppend(&text, "\n![", chart.title, "](", plots, "/", chart.file,
                    ".svg)\n");
  }
  return text;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(path, ": cannot be opened for writing"));
  }
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), file);
  if (std::fclose(file) != 0 || written != text.size()) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
