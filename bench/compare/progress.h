// Says on standard error what is being measured: one line that changes on a
// terminal, a line a step elsewhere.
#ifndef VMMSHARE_BENCH_COMPARE_PROGRESS_H_
#define VMMSHARE_BENCH_COMPARE_PROGRESS_H_

#include <cstdint>
#include <string>

namespace bench::compare {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What begins now.
  void Step(const std::string& text);
  // Within the step; shown on a terminal, a few times a second.
  void Detail(const std::string& text);
  // Clears the line, before something else is printed.
  void Clear();

 private:
  bool terminal_;
  std::int64_t started_;
  std::int64_t shown_ = 0;
  std::string step_;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_PROGRESS_H_
