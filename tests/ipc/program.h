// Runs a program of the build and watches what it prints.
#ifndef VMMSHARE_TESTS_IPC_PROGRAM_H_
#define VMMSHARE_TESTS_IPC_PROGRAM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/os/os_handle.h"

namespace vmm::testing {

// The folder of the running test program: the build tree may have been copied
// to a machine with a GPU.
std::string FolderOfThisProgram();

// A running program. Move-only.
class Program {
 public:
  // `env` adds to, or changes, this process's environment.
  static Program Start(const std::string& path,
                       const std::vector<std::string>& args,
                       const std::map<std::string, std::string>& env);
  Program(Program&& other) noexcept;
  Program& operator=(Program&&) = delete;
  // Kills and reaps a program that was not waited for.
  ~Program();

  // How long a program may take here, on the busiest machine. Below the limit
  // of a test (tests/CMakeLists.txt), so that what it printed is shown.
  static absl::Duration Patience();

  // Returns once the program has printed `text`; false when it ended, or
  // `deadline` passed, before.
  bool WaitForText(absl::string_view text,
                   absl::Time deadline = absl::Now() + 0.6 * Patience());

  // Returns once the program has closed its output; false when `deadline` passed before.
  bool WaitForEnd(absl::Time deadline);

  // The exit status, or 128 + the signal that ended it. Fails the test and
  // kills the program when `deadline` passes.
  int Wait(absl::Time deadline = absl::Now() + Patience());
  void Kill();

  // Standard output and standard error, as they came.
  const std::string& output() const { return output_; }

 private:
  Program(std::int64_t pid, platform::OsHandle pipe, platform::OsHandle input)
      : pid_(pid), pipe_(std::move(pipe)), input_(std::move(input)) {}
  // Reads what there is; false at `deadline`, and when the output has ended_.
  bool ReadMore(absl::Time deadline);
  int Reap();

  std::int64_t pid_;
  platform::OsHandle pipe_;
  platform::OsHandle input_;  // Open: the program's input does not end.
  std::string output_;
  bool ended_ = false;  // The output.
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_PROGRAM_H_
