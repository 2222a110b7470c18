#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "tests/ipc/program.h"
#include "tests/support/emulator.h"

namespace vmm::testing {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string FolderOfThisProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

Program Program::Start(const std::string& path,
                       const std::vector<std::string>& args,
                       const std::map<std::string, std::string>& env) {
  std::vector<std::string> words = CommandFor(path);
  words.insert(words.end(), args.begin(), args.end());
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    if (!env.contains(std::string(text.substr(0, text.find('='))))) {
      entries.emplace_back(text);
    }
  }
  for (const auto& [name, value] : env) {
    entries.push_back(absl::StrCat(name, "=", value));
  }

  int ends[2];
  platform::Check(pipe2(ends, O_CLOEXEC) == 0, "pipe2() failed");
  platform::OsHandle read = platform::OsHandle::Adopt(ends[0]);
  const platform::OsHandle write = platform::OsHandle::Adopt(ends[1]);
  // An input that nothing is written to: a program that waits for a key waits.
  int input[2];
  platform::Check(pipe2(input, O_CLOEXEC) == 0, "pipe2() failed");
  const platform::OsHandle read_input = platform::OsHandle::Adopt(input[0]);
  platform::OsHandle write_input = platform::OsHandle::Adopt(input[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, words.front().c_str(), &actions, nullptr,
                   Pointers(words).data(), Pointers(entries).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    platform::Die(absl::StrCat("posix_spawn(", path, ") failed: errno ", error,
                               "; build the examples first"));
  }
  return Program(pid, std::move(read), std::move(write_input));
}

absl::Duration Program::Patience() { return absl::Seconds(100); }

Program::Program(Program&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pipe_(std::move(other.pipe_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      ended_(other.ended_) {}

Program::~Program() {
  if (pid_ == 0) return;
  Kill();
  Reap();
}

void Program::Kill() { kill(static_cast<pid_t>(pid_), SIGKILL); }

bool Program::ReadMore(absl::Time deadline) {
  pollfd waited{static_cast<int>(pipe_.get()), POLLIN, 0};
  for (;;) {
    const std::int64_t left = std::max<std::int64_t>(
        0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    const int ready = poll(&waited, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char piece[4096];
    const ssize_t count = read(waited.fd, piece, sizeof(piece));
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) output_.append(piece, static_cast<std::size_t>(count));
    ended_ = count <= 0;
    return !ended_;
  }
}

bool Program::WaitForText(absl::string_view text, absl::Time deadline) {
  while (!absl::StrContains(output_, text)) {
    if (!ReadMore(deadline)) return false;
  }
  return true;
}

bool Program::WaitForEnd(absl::Time deadline) {
  while (ReadMore(deadline)) {
  }
  return ended_;
}

int Program::Wait(absl::Time deadline) {
  if (!WaitForEnd(deadline)) {
    ADD_FAILURE() << "the program did not end in time; it printed:\n"
                  << output_;
    Kill();
  }
  return Reap();
}

int Program::Reap() {
  int status = 0;
  const auto pid = static_cast<pid_t>(std::exchange(pid_, 0));
  while (waitpid(pid, &status, 0) < 0) {
    platform::Check(errno == EINTR, "waitpid() of a program failed");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace vmm::testing
