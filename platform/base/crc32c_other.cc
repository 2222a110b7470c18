// Where no instruction is made use of: processors other than x86-64, and MSVC.
#include "platform/base/crc32c.h"

namespace vmm::platform {

ExtendCrc32cFunction FindCrc32cInstruction() { return nullptr; }
ExtendCrc32cFunction FindWideCrc32c() { return nullptr; }

}  // namespace vmm::platform
