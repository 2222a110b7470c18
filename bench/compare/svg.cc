// Plots as SVG: self-contained, and readable on light and dark grounds.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "bench/compare/results.h"

namespace bench::compare {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kLeft = 90;
constexpr double kTop = 56;
constexpr double kPlotWidth = 460;
constexpr double kPlotHeight = 290;

// Colours that differ in lightness too, and stand out on white and on black.
constexpr char kStyle[] = R"(<style>
  .ground { fill: #ffffff; }
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 15px; font-weight: 600; }
  .minor { fill: #57606a; }
  .axis { stroke: #57606a; fill: none; }
  .grid { stroke: #d0d7de; stroke-dasharray: 2 3; }
  .line { fill: none; stroke-width: 2.2; }
  .s0 { stroke: #6e7781; } .f0 { fill: #6e7781; }
  .s1 { stroke: #bf5b04; } .f1 { fill: #bf5b04; }
  .s2 { stroke: #8250df; } .f2 { fill: #8250df; }
  .s3 { stroke: #0969da; } .f3 { fill: #0969da; }
  .s4 { stroke: #1a7f37; } .f4 { fill: #1a7f37; }
  .s5 { stroke: #cf222e; } .f5 { fill: #cf222e; }
  .s6 { stroke: #8c6d1f; } .f6 { fill: #8c6d1f; }
  .s7 { stroke: #bf3989; } .f7 { fill: #bf3989; }
  .s8 { stroke: #1b7c83; } .f8 { fill: #1b7c83; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; }
    text { fill: #e6edf3; }
    .minor { fill: #9198a1; }
    .axis { stroke: #9198a1; }
    .grid { stroke: #3d444d; }
    .s0 { stroke: #9198a1; } .f0 { fill: #9198a1; }
    .s1 { stroke: #f0883e; } .f1 { fill: #f0883e; }
    .s2 { stroke: #bc8cff; } .f2 { fill: #bc8cff; }
    .s3 { stroke: #58a6ff; } .f3 { fill: #58a6ff; }
    .s4 { stroke: #3fb950; } .f4 { fill: #3fb950; }
    .s5 { stroke: #ff7b72; } .f5 { fill: #ff7b72; }
    .s6 { stroke: #d4a72c; } .f6 { fill: #d4a72c; }
    .s7 { stroke: #ff80c8; } .f7 { fill: #ff80c8; }
    .s8 { stroke: #39c5cf; } .f8 { fill: #39c5cf; }
  }
</style>
)";

// The same colour for the same route in every plot.
std::size_t ColourOf(const std::string& name) {
  constexpr std::pair<const char*, std::size_t> kKnown[] = {
      {"legacy IPC, a handle each", 0},
      {"cuMemAlloc", 0},
      {"cuMemAllocAsync", 1},
      {"stream-ordered pool IPC", 1},
      {"bare VMM calls", 2},
      {"vmmshare dedicated", 3},
      {"vmmshare pool", 4},
      {"legacy IPC, own 2 MiB each", 5},
      {"legacy IPC, handles cached", 7},
      {"legacy IPC, arena", 8},
  };
  for (const auto& [known, colour] : kKnown) {
    if (name == known) return colour;
  }
  return 6;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

struct TextStyle {
  std::string css = "";
  std::string anchor = "start";
};

std::string TextAt(double x, double y, const std::string& text,
                   const TextStyle& style) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n",
      x, y, style.css, style.anchor, Escaped(text));
}

std::string LineBetween(double x1, double y1, double x2, double y2,
                        const char* css) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
      x1, y1, x2, y2, css);
}

// "10 us" without the zeros that TimeText adds.
std::string ShortTime(double ns) {
  constexpr std::array<const char*, 4> kUnits = {"ns", "us", "ms", "s"};
  std::size_t unit = 0;
  while (ns >= 999.5 && unit + 1 < kUnits.size()) {
    ns /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", ns, kUnits[unit]);
}

// One axis: from values to places, and its marks.
class Axis {
 public:
  Axis(double low, double high, bool logarithmic, double base)
      : logarithmic_(logarithmic), base_(base) {
    if (!logarithmic) {
      low_ = 0;
      high_ = high > 0 ? high * 1.08 : 1;
      return;
    }
    low_ = std::floor(Log(low) + 1e-9);
    high_ = std::max(std::ceil(Log(high) - 1e-9), low_ + 1);
  }
  // 0 to 1.
  double Place(double value) const {
    const double at = logarithmic_ ? Log(value) : value;
    return std::clamp((at - low_) / (high_ - low_), 0.0, 1.0);
  }
  std::vector<double> Marks() const {
    std::vector<double> marks;
    if (logarithmic_) {
      const double step = std::max(1.0, std::ceil((high_ - low_) / 9));
      for (double at = low_; at <= high_ + 1e-9; at += step) {
        marks.push_back(std::pow(base_, at));
      }
      return marks;
    }
    double step = std::pow(10, std::floor(std::log10(high_)));
    if (high_ / step < 2.5) step /= 5;
    for (double at = 0; at <= high_; at += step) marks.push_back(at);
    return marks;
  }

 private:
  double Log(double value) const {
    return std::log(std::max(value, 1e-3)) / std::log(base_);
  }

  bool logarithmic_;
  double base_;
  double low_ = 0;
  double high_ = 1;
};

double Y(const Axis& axis, double value) {
  return kTop + kPlotHeight * (1 - axis.Place(value));
}

std::string YMarks(const Chart& chart, const Axis& y) {
  std::string text;
  for (const double mark : y.Marks()) {
    const double at = Y(y, mark);
    text += LineBetween(kLeft, at, kLeft + kPlotWidth, at, "grid");
    text += TextAt(
        kLeft - 8, at + 4,
        chart.y_is_time ? ShortTime(mark) : absl::StrFormat("%.4g", mark),
        {"minor", "end"});
  }
  return text;
}

std::string Lines(const Chart& chart) {
  double low_x = 1e300;
  double high_x = 0;
  double low_y = 1e300;
  double high_y = 0;
  for (const Chart::Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      low_x = std::min(low_x, x);
      high_x = std::max(high_x, x);
      low_y = std::min(low_y, y);
      high_y = std::max(high_y, y);
    }
  }
  if (high_x == 0) return "";
  const Axis x_axis(low_x, high_x, true, 2);
  const Axis y_axis(low_y, high_y, chart.logarithmic, 10);
  std::string text = YMarks(chart, y_axis);
  for (const double mark : x_axis.Marks()) {
    const double at = kLeft + kPlotWidth * x_axis.Place(mark);
    text += LineBetween(at, kTop, at, kTop + kPlotHeight, "grid");
    text += TextAt(at, kTop + kPlotHeight + 18,
                   chart.x_is_bytes ? SizeName(static_cast<std::uint64_t>(mark))
                                    : absl::StrFormat("%.4g", mark),
                   {"minor", "middle"});
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Chart::Series& series = chart.series[i];
    const std::size_t colour = ColourOf(series.name);
    std::string points;
    std::string dots;
    for (const auto& [x, y] : series.points) {
      const double px = kLeft + kPlotWidth * x_axis.Place(x);
      const double py = Y(y_axis, y);
      absl::StrAppendFormat(&points, "%.1f,%.1f ", px, py);
      absl::StrAppendFormat(
          &dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"f%d\"/>\n",
          px, py, colour);
    }
    absl::StrAppendFormat(&text,
                          "<polyline points=\"%s\" class=\"line s%d\"/>\n%s",
                          points, colour, dots);
    const double at = kTop + 12 + 22 * static_cast<double>(i);
    const double legend = kLeft + kPlotWidth + 18;
    absl::StrAppendFormat(
        &text,
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"line "
        "s%d\"/>\n",
        legend, at - 4, legend + 20, at - 4, colour);
    text += TextAt(legend + 26, at, series.name, {});
  }
  return text;
}

std::string Bars(const Chart& chart) {
  double low = 1e300;
  double high = 0;
  for (const auto& [name, value] : chart.bars) {
    if (value > 0) low = std::min(low, value);
    high = std::max(high, value);
  }
  if (high == 0) return "";
  const Axis axis(low / 2, high, chart.logarithmic, 10);
  std::string text = YMarks(chart, axis);
  const double slot = kPlotWidth / static_cast<double>(chart.bars.size());
  const double legend = kLeft + kPlotWidth + 18;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const auto& [name, value] = chart.bars[i];
    const std::size_t colour = ColourOf(name);
    const double x = kLeft + slot * (static_cast<double>(i) + 0.15);
    const double y = Y(axis, value);
    absl::StrAppendFormat(
        &text,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
        "class=\"f%d\"/>\n",
        x, y, slot * 0.7, kTop + kPlotHeight - y, colour);
    text += TextAt(
        x + slot * 0.35, y - 5,
        chart.y_is_time ? ShortTime(value) : absl::StrFormat("%.4g", value),
        {"", "middle"});
    const double at = kTop + 12 + 22 * static_cast<double>(i);
    absl::StrAppendFormat(&text,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                          "height=\"12\" class=\"f%d\"/>\n",
                          legend, at - 10, colour);
    text += TextAt(legend + 20, at, name, {});
  }
  return text;
}

}  // namespace

std::string ToSvg(const Chart& chart) {
  std::string text = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n",
      kWidth, kHeight, kWidth, kHeight, Escaped(chart.title));
  text += kStyle;
  // An element, for not every viewer paints a background of the root's.
  text += "<rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n";
  text += TextAt(kLeft, 26, chart.title, {"title"});
  text += TextAt(kLeft, 44, chart.y_label, {"minor"});
  text += chart.series.empty() ? Bars(chart) : Lines(chart);
  text += LineBetween(kLeft, kTop, kLeft, kTop + kPlotHeight, "axis");
  text += LineBetween(kLeft, kTop + kPlotHeight, kLeft + kPlotWidth,
                      kTop + kPlotHeight, "axis");
  text += TextAt(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 42, chart.x_label,
                 {"minor", "middle"});
  text += TextAt(kWidth - 12, kHeight - 10, chart.note, {"minor", "end"});
  return text + "</svg>\n";
}

absl::Status WriteCharts(const std::vector<Chart>& charts,
                         const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "--svg=", directory, ": cannot be made: ", error.message()));
  }
  for (const Chart& chart : charts) {
    absl::Status written = WriteFile(
        absl::StrCat(directory, "/", chart.file, ".svg"), ToSvg(chart));
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
