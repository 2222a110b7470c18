// Child processes of a test: the same program, started again in another role.
//
//   int Importer(const std::vector<std::string>& args) { ...; return 0; }
//   const bool kImporter = RegisterChild("importer", &Importer);
//
//   TEST(Sharing, ImporterReadsWhatTheOwnerWrote) {
//     Child child = Child::Start("importer", {address});
//     EXPECT_EQ(child.Wait(), 0);
//   }
//
// A child is a fresh process (fork and exec), unrelated to its parent as far
// as the driver can tell. A test must not fork without exec once it has used
// the driver.
#ifndef VMMSHARE_TESTS_SUPPORT_CHILD_H_
#define VMMSHARE_TESTS_SUPPORT_CHILD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace vmm::testing {

using ChildMain = int (*)(const std::vector<std::string>& args);

// Makes `main` startable as `name`. Call at namespace scope. Returns true.
bool RegisterChild(const std::string& name, ChildMain main);

class Child {
 public:
  // Starts the registered child `name` with `args`; `env` adds to, or changes,
  // this process's environment. Its standard error is this process's.
  // It ends with the thread that started it, should that end first.
  static Child Start(const std::string& name,
                     const std::vector<std::string>& args,
                     const std::map<std::string, std::string>& env = {});
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  // Kills (SIGKILL) and reaps a child that was not waited for.
  ~Child();

  // Ends the child with SIGKILL (Windows: TerminateProcess). It still must be
  // waited for, which answers kKilled.
  void Kill();
  static constexpr int kKilled = 128 + 9;
  // Stops and continues it (SIGSTOP, SIGCONT).
  void Stop();
  void Continue();
  // Whether it stands still, by Stop() or because it stopped itself. Windows:
  // never said.
  bool IsStopped() const;

  // The exit status: what its main returned, or 128 + the signal that ended
  // it. Fails the test and kills the child when `deadline` passes.
  int Wait(absl::Time deadline = absl::Now() + absl::Seconds(60));

  std::int64_t pid() const { return pid_; }

 private:
  explicit Child(std::int64_t pid) : pid_(pid) {}
  std::int64_t pid_;
};

// Whether a process that ended with `status`, as EXPECT_EXIT is given it, was
// ended by an access to memory that it has not.
bool EndedByAFault(int status);

// Ends this process at once, as Kill() would.
[[noreturn]] void KillThisProcess();

// Runs a registered child if this process was started as one; called by
// test_main.cc before anything else. Returns -1 when it was not.
int RunAsChild(int argc, char** argv);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_CHILD_H_
