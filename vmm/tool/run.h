// The command-line tool as a function: the program, the C interface and the
// Python package call it.
#ifndef VMMSHARE_VMM_TOOL_RUN_H_
#define VMMSHARE_VMM_TOOL_RUN_H_

#include <string>
#include <vector>

namespace vmm::tool {

// Does what `words`, those after the program's name, ask for. The exit code;
// see kExitGood and those beside it in command_line.h.
int Run(std::vector<std::string> words);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_RUN_H_
