#include "platform/os/handle_table.h"

namespace vmm::platform {

// Windows' table grows without a wait.
void GrowHandleTable() {}

}  // namespace vmm::platform
