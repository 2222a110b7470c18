// What CreateProcessW takes, from what a test has.
#ifndef VMMSHARE_TESTS_SUPPORT_COMMAND_LINE_WIN_H_
#define VMMSHARE_TESTS_SUPPORT_COMMAND_LINE_WIN_H_

#include <map>
#include <string>
#include <vector>

namespace vmm::testing {

// `program` and `args`, as the C runtime of the new process splits them again.
std::wstring CommandLineOf(const std::string& program,
                           const std::vector<std::string>& args);

// This process's environment with `changes`.
std::wstring EnvironmentWith(const std::map<std::string, std::string>& changes);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_COMMAND_LINE_WIN_H_
