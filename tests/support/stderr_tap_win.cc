#include <fcntl.h>
#include <io.h>
#include <signal.h>
#include <stdio.h>
#include <windows.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "platform/base/check.h"
#include "tests/support/stderr_tap.h"

namespace vmm::testing {
namespace {

constexpr std::string_view kReport = "vmmshare: a release failed";
constexpr int kStderr = 2;

// While the tap is on, standard error is a file that goes when it is closed.
struct Tap {
  int real = -1;  // Standard error meanwhile.
  int file = -1;
};

Tap tap;
// Read by a signal handler, hence no string.
char last_words[512];

void Show(int to, std::string_view text) {
  while (!text.empty()) {
    const int written =
        ::_write(to, text.data(), static_cast<unsigned>(text.size()));
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string ReadAll(int file) {
  std::string text;
  char buffer[4096];
  ::_lseek(file, 0, SEEK_SET);
  for (int size; (size = ::_read(file, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

void OnAbort(int) {
  if (tap.file < 0) return;
  // What the program said last is in the file.
  Show(tap.real, ReadAll(tap.file));
  Show(tap.real,
       std::string_view(last_words, ::strnlen(last_words, sizeof last_words)));
}

}  // namespace

void BeginTap(const std::string& where) {
  platform::Check(tap.file < 0, "BeginTap: already on");
  wchar_t folder[MAX_PATH + 1];
  wchar_t path[MAX_PATH + 1];
  platform::Check(::GetTempPathW(MAX_PATH, folder) != 0 &&
                      ::GetTempFileNameW(folder, L"tap", 0, path) != 0,
                  "cannot name a file to tap standard error");
  std::fflush(stderr);
  tap.file = ::_wopen(path, _O_RDWR | _O_BINARY | _O_TEMPORARY | _O_NOINHERIT);
  platform::Check(tap.file >= 0, "cannot open a file to tap standard error");
  tap.real = ::_dup(kStderr);
  platform::Check(tap.real >= 0 && ::_dup2(tap.file, kStderr) == 0,
                  "cannot tap standard error");
  ::signal(SIGABRT, &OnAbort);
  std::memset(last_words, 0, sizeof last_words);
  const std::string words = "died " + where + "\n";
  words.copy(last_words, sizeof last_words - 1);
}

std::vector<std::string> EndTap() {
  std::fflush(stderr);
  ::_dup2(tap.real, kStderr);
  const std::string text = ReadAll(tap.file);
  ::_close(tap.file);
  ::_close(tap.real);
  tap = {};
  ::signal(SIGABRT, SIG_DFL);
  std::vector<std::string> reports;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.starts_with(kReport)) {
      reports.push_back(std::move(line));
    } else {
      Show(kStderr, line + "\n");
    }
  }
  return reports;
}

}  // namespace vmm::testing
