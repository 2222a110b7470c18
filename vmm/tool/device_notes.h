// What is worth knowing of the devices' modes though nothing failed.
#ifndef VMMSHARE_VMM_TOOL_DEVICE_NOTES_H_
#define VMMSHARE_VMM_TOOL_DEVICE_NOTES_H_

#include <vector>

#include "fabric/diagnosis.h"
#include "vmm/tool/examine.h"

namespace vmm::tool {

// Compute modes, MIG and confidential computing.
void AddNotesOnModes(const Report& report, std::vector<fabric::Finding>* notes);

// MPS changes what processes do to each other, which nobody should learn from a
// fault; and what it limits looks like a full device.
void AddNotesOnMps(const Report& report, std::vector<fabric::Finding>* notes);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_DEVICE_NOTES_H_
