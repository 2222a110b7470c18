// Windows has no linker that replaces calls into DLLs by name in a way that
// holds for both tool chains, so only driver calls are failed here.
#include "absl/strings/str_cat.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {

bool SyscallFaultsSupported() { return false; }

void ArmSyscallFault(const SyscallFault&) {}
SyscallOutcome DisarmSyscallFault() { return {}; }

std::map<std::string, std::uint64_t> SyscallsByName() { return {}; }
std::vector<SyscallRow> SyscallTable() { return {}; }

bool IsTransient(int) { return false; }
std::string ErrnoName(int error) { return absl::StrCat("error ", error); }

}  // namespace vmm::testing
