// Why this machine does or does not hand out fabric handles.
#ifndef VMMSHARE_FABRIC_ACCESS_H_
#define VMMSHARE_FABRIC_ACCESS_H_

#include <cuda.h>

#include <string>

#include "absl/strings/string_view.h"

namespace vmm::fabric {

// What to do about `result`, with which a driver call that asked for a fabric
// handle failed. Names the IMEX channel nodes that this process finds. Empty
// when there is nothing particular to fabric handles to say.
std::string AdviceFor(CUresult result);
// The same where those are looked for in the /dev of the folder `root`.
std::string AdviceFor(CUresult result, const std::string& root);

// The same for the import of a peer's handle.
std::string ImportAdviceFor(CUresult result);
std::string ImportAdviceFor(CUresult result, const std::string& root);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_ACCESS_H_
