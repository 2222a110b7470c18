#include "bench/compare/progress.h"

#include <cstdio>

#include "bench/compare/clock.h"
#include "bench/compare/os.h"

namespace bench::compare {

Progress::Progress()
    : terminal_(StandardErrorIsATerminal()), started_(NowNs()) {}
Progress::~Progress() { Clear(); }

void Progress::Step(const std::string& text) {
  step_ = text;
  const double seconds = static_cast<double>(NowNs() - started_) / 1e9;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K[%6.1f s] %s", seconds, text.c_str());
  } else {
    std::fprintf(stderr, "[%6.1f s] %s\n", seconds, text.c_str());
  }
  std::fflush(stderr);
}

void Progress::Detail(const std::string& text) {
  constexpr std::int64_t kBetween = 200'000'000;
  const std::int64_t now = NowNs();
  if (!terminal_ || now - shown_ < kBetween) return;
  shown_ = now;
  const double seconds = static_cast<double>(now - started_) / 1e9;
  std::fprintf(stderr, "\r\033[K[%6.1f s] %s: %s", seconds, step_.c_str(),
               text.c_str());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace bench::compare
