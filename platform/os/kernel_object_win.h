// What the kernel says of an open handle; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_KERNEL_OBJECT_WIN_H_
#define VMMSHARE_PLATFORM_OS_KERNEL_OBJECT_WIN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace vmm::platform {

struct KernelObject {
  std::string type;          // "Section", "Event", "File", "Process", ...
  std::uint32_t access = 0;  // What this handle may do with it.
};

// INVALID_ARGUMENT when `handle` is a pseudo handle, none, or not open.
absl::StatusOr<KernelObject> InspectHandle(std::intptr_t handle);

struct SectionFacts {
  std::uint64_t size = 0;  // Bytes.
  bool has_file = false;  // Backed by a file: whoever holds that can change it.
  bool is_image = false;  // A program's.
  // Of one that is only reserved, a page faults until somebody commits it.
  bool is_committed = false;
};

// REQUIRES: the handle is a section with SECTION_QUERY.
absl::StatusOr<SectionFacts> InspectSection(std::intptr_t handle);

// The bits of a section's access, which <windows.h> names otherwise.
inline constexpr std::uint32_t kSectionQuery = 0x1;
inline constexpr std::uint32_t kSectionMapWrite = 0x2;
inline constexpr std::uint32_t kSectionMapRead = 0x4;

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_KERNEL_OBJECT_WIN_H_
