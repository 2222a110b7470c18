#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "platform/base/check.h"
#include "tests/support/stderr_tap.h"

namespace vmm::testing {
namespace {

constexpr std::string_view kReport = "vmmshare: a release failed";

struct Tap {
  std::mutex mutex;
  bool on = false;
  std::string line;  // Begun, not ended.
  std::vector<std::string> reports;
};

Tap& TheTap() {
  static Tap* const tap = new Tap;
  return *tap;
}

// Read by a signal handler, hence no string.
char last_words[512];

void Show(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

ssize_t OnWrite(void*, const char* data, size_t size) {
  Tap& tap = TheTap();
  const std::lock_guard lock(tap.mutex);
  const std::string_view text(data, size);
  if (!tap.on) {
    Show(text);
    return static_cast<ssize_t>(size);
  }
  tap.line += text;
  std::size_t end;
  while ((end = tap.line.find('\n')) != std::string::npos) {
    const std::string line = tap.line.substr(0, end + 1);
    tap.line.erase(0, end + 1);
    if (line.starts_with(kReport)) {
      tap.reports.push_back(line.substr(0, end));
    } else {
      Show(line);
    }
  }
  return static_cast<ssize_t>(size);
}

void OnAbort(int) {
  Show(std::string_view(last_words, ::strnlen(last_words, sizeof last_words)));
}

// Once, and never undone: other threads may be printing at any time.
void Install() {
  cookie_io_functions_t functions = {};
  functions.write = &OnWrite;
  FILE* tapped = ::fopencookie(nullptr, "w", functions);
  platform::Check(tapped != nullptr, "cannot tap standard error");
  ::setvbuf(tapped, nullptr, _IONBF, 0);
  stderr = tapped;  // glibc: "can be set like any other variable".
  struct sigaction action = {};
  action.sa_handler = &OnAbort;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGABRT, &action, nullptr);
}

}  // namespace

void BeginTap(const std::string& where) {
  static const bool installed = (Install(), true);
  Tap& tap = TheTap();
  const std::lock_guard lock(tap.mutex);
  platform::Check(installed && !tap.on, "BeginTap: already on");
  tap.on = true;
  tap.reports.clear();
  std::fill(std::begin(last_words), std::end(last_words), '\0');
  const std::string words = "died " + where + "\n";
  words.copy(last_words, sizeof last_words - 1);
}

std::vector<std::string> EndTap() {
  Tap& tap = TheTap();
  const std::lock_guard lock(tap.mutex);
  tap.on = false;
  last_words[0] = '\0';
  Show(std::exchange(tap.line, ""));
  return std::exchange(tap.reports, {});
}

}  // namespace vmm::testing
