#include "bench/trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench {
namespace {

constexpr absl::string_view kMark = "vmmshare-trace ";
constexpr std::uint32_t kMostStreams = 1 << 16;
// More than a device has; so that no sum of sizes overflows.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostEvents = std::uint64_t{1} << 22;

absl::Status Bad(std::size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("no usable trace: line ", line, ": ", what));
}

// "+ SIZE STREAM" or "- ALLOCATION STREAM".
struct Words {
  char sign = 0;
  std::uint64_t number = 0;
  std::uint32_t stream = 0;
};
bool Split(absl::string_view line, Words* out) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || words[0].size() != 1) return false;
  out->sign = words[0][0];
  return (out->sign == '+' || out->sign == '-') &&
         absl::SimpleAtoi(words[1], &out->number) &&
         absl::SimpleAtoi(words[2], &out->stream);
}

// Adds events to a trace as long as they make sense.
class Builder {
 public:
  explicit Builder(Trace* trace) : trace_(*trace) {}

  // Empty, or what is wrong.
  std::string Add(const Words& words) {
    if (words.stream >= trace_.streams) {
      return absl::StrCat("stream ", words.stream, " of ", trace_.streams);
    }
    return words.sign == '+' ? Allocate(words) : Free(words);
  }

 private:
  std::string Allocate(const Words& words) {
    if (words.number == 0 || words.number > kLargest) {
      return absl::StrCat("an allocation of ", words.number,
                          " bytes; expected 1 to ", kLargest);
    }
    trace_.events.push_back(
        {true, words.number, words.stream, trace_.allocations++});
    sizes_.push_back(words.number);
    live_ += words.number;
    trace_.peak_live = std::max(trace_.peak_live, live_);
    return "";
  }
  std::string Free(const Words& words) {
    if (words.number >= sizes_.size() || sizes_[words.number] == 0) {
      return absl::StrCat(
          "allocation ", words.number, " is freed",
          words.number < sizes_.size() ? " twice" : ", which was not made yet");
    }
    const auto at = static_cast<std::size_t>(words.number);
    const std::uint64_t size = std::exchange(sizes_[at], 0);
    live_ -= size;
    trace_.events.push_back({false, size, words.stream, at});
    return "";
  }

  Trace& trace_;
  std::vector<std::uint64_t> sizes_;  // Of each allocation; 0 once it is free.
  std::uint64_t live_ = 0;
};

// "N events, M streams".
bool ReadCounts(absl::string_view line, std::uint64_t* events,
                std::uint32_t* streams) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  return words.size() == 4 && words[1] == "events," && words[3] == "streams" &&
         absl::SimpleAtoi(words[0], events) && *events <= kMostEvents &&
         absl::SimpleAtoi(words[2], streams) && *streams <= kMostStreams;
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  absl::string_view version = lines[0];
  if (!absl::ConsumePrefix(&version, kMark)) {
    return Bad(1, absl::StrCat("it begins with \"",
                               absl::CHexEscape(lines[0].substr(0, 32)),
                               "\"; expected \"", kMark, "1\""));
  }
  if (version != "1") {
    return absl::UnimplementedError(
        absl::StrCat("the trace has version \"", absl::CHexEscape(version),
                     "\"; this program reads version 1"));
  }
  Trace trace;
  std::uint64_t events = 0;
  if (lines.size() < 5 || !ReadCounts(lines[3], &events, &trace.streams)) {
    return Bad(4, "expected \"N events, M streams\"");
  }
  if (events == 0) {
    return Bad(4, "a trace without events says nothing; expected 1 at least");
  }
  trace.program = std::string(lines[1]);
  trace.recorded_with = std::string(lines[2]);
  if (lines.size() != events + 6 || lines[lines.size() - 2] != "end" ||
      !lines.back().empty()) {
    return Bad(lines.size(),
               absl::StrCat("it ends in the middle: expected ", events,
                            " events and then a line \"end\""));
  }
  Builder builder(&trace);
  for (std::size_t i = 4; i + 2 < lines.size(); ++i) {
    Words words;
    const std::string wrong =
        Split(lines[i], &words)
            ? builder.Add(words)
            : "expected \"+ SIZE STREAM\" or \"- ALLOCATION STREAM\"";
    if (!wrong.empty()) return Bad(i + 1, wrong);
  }
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read ", path));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  absl::StatusOr<Trace> trace = ParseTrace(text);
  if (!trace.ok()) return vmm::platform::Annotate(trace.status(), path);
  return trace;
}

}  // namespace bench
