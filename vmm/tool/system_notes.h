// What is worth knowing of the system and its driver though nothing failed.
#ifndef VMMSHARE_VMM_TOOL_SYSTEM_NOTES_H_
#define VMMSHARE_VMM_TOOL_SYSTEM_NOTES_H_

#include <vector>

#include "fabric/diagnosis.h"
#include "vmm/tool/examine.h"

namespace vmm::tool {

// Why there is no driver, where the system was asked for one.
void AddNoteOnDriver(const Report& report, std::vector<fabric::Finding>* notes);

void AddNotesOnLimits(const Report& report,
                      std::vector<fabric::Finding>* notes);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_SYSTEM_NOTES_H_
