#include "tests/support/command_line_win.h"

#include <windows.h>

#include "platform/base/check.h"
#include "platform/os/utf16_win.h"

namespace vmm::testing {
namespace {

std::wstring Wide(const std::string& text) {
  absl::StatusOr<std::wstring> wide = platform::ToUtf16(text);
  if (!wide.ok()) platform::Die(wide.status().ToString());
  return *std::move(wide);
}

}  // namespace

std::wstring CommandLineOf(const std::string& program,
                           const std::vector<std::string>& args) {
  std::wstring line = platform::QuotedWord(Wide(program));
  for (const std::string& arg : args)
    line += L" " + platform::QuotedWord(Wide(arg));
  return line;
}

std::wstring EnvironmentWith(
    const std::map<std::string, std::string>& changes) {
  std::map<std::wstring, std::wstring> merged;
  wchar_t* const block = ::GetEnvironmentStringsW();
  for (const wchar_t* entry = block; *entry != L'\0';) {
    const std::wstring text = entry;
    entry += text.size() + 1;
    // The working directories of drives are in there as "=C:=C:\...".
    const std::size_t equals = text.find(L'=', 1);
    if (equals == std::wstring::npos) continue;
    merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  ::FreeEnvironmentStringsW(block);
  for (const auto& [name, value] : changes) merged[Wide(name)] = Wide(value);
  std::wstring result;
  for (const auto& [name, value] : merged) {
    result.append(name).append(L"=").append(value).append(1, L'\0');
  }
  result += L'\0';
  return result;
}

}  // namespace vmm::testing
