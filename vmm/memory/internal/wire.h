// The fields of wire formats, under the names by which vmm/ calls them.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_WIRE_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_WIRE_H_

#include "platform/base/wire.h"

namespace vmm {

using platform::Crc32c;
using platform::ExtendCrc32c;
using platform::kCrcBytes;
using platform::TrailingCrc32c;
using platform::WireReader;
using platform::WireWriter;

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_WIRE_H_
