// Overhears what the library prints to standard error: the reports of releases
// that failed, which no status carries (platform::ReportReleaseFailure).
#ifndef VMMSHARE_TESTS_SUPPORT_STDERR_TAP_H_
#define VMMSHARE_TESTS_SUPPORT_STDERR_TAP_H_

#include <string>
#include <vector>

namespace vmm::testing {

// From here to EndTap() lines that report a failed release are kept and not
// shown; all others are shown as they come, so that the last words of a
// program that dies are not lost. Until then, `where` is printed too should
// the program abort. Not nested. Thread-safe towards threads that print.
void BeginTap(const std::string& where);
// The lines kept since BeginTap().
std::vector<std::string> EndTap();

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_STDERR_TAP_H_
