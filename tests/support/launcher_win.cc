// Runs a program under wine and ends with its exit code.
//
// A program that ends while its threads run may hang in the end of its host
// process. Wine's server kills it after half a second, and then the host sees
// a killed process where Windows sees the exit code. This one has no threads,
// and asks as Windows programs do.
#include <windows.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  // What stands behind this program's own name, which may be quoted.
  const wchar_t* line = ::GetCommandLineW();
  for (bool quoted = false; *line != L'\0' && (quoted || *line != L' ');
       ++line) {
    if (*line == L'"') quoted = !quoted;
  }
  while (*line == L' ') ++line;
  std::wstring command = line;
  STARTUPINFOW startup = {};
  startup.cb = sizeof(startup);
  PROCESS_INFORMATION started = {};
  if (::CreateProcessW(nullptr, command.data(), nullptr, nullptr,
                       /*inherit=*/TRUE, 0, nullptr, nullptr, &startup,
                       &started) == 0) {
    std::fprintf(stderr, "launcher: CreateProcessW(%ls) failed with %lu\n",
                 line, ::GetLastError());
    return EXIT_FAILURE;
  }
  ::WaitForSingleObject(started.hProcess, INFINITE);
  DWORD status = EXIT_FAILURE;
  ::GetExitCodeProcess(started.hProcess, &status);
  return static_cast<int>(status);
}
