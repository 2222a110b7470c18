#include "platform/os/termination_scope.h"
#include "platform/os/termination_win.h"

namespace vmm::platform {

// Handlers are added by HoldTermination() alone.
struct TerminationScope::Before {};

TerminationScope::TerminationScope() = default;
TerminationScope::~TerminationScope() { LetGoOfTermination(); }

}  // namespace vmm::platform
