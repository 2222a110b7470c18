#include "platform/ipc/shared_memory.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <sddl.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/kernel_object_win.h"
#include "platform/os/os_error.h"
#include "platform/os/security_win.h"

namespace vmm::platform {
namespace {

// Nobody may open the section anew, with whatever rights, its owner included:
// DuplicateHandle() gives a handle of more rights than its source had when the
// object's descriptor admits the caller, so that with one that admits the user
// a peer of the same user could make its read-only handle a writable one.
// S-1-3-4 (OWNER RIGHTS) takes from the owner the right to change that.
constexpr wchar_t kNobody[] = L"D:P(A;;RC;;;S-1-3-4)";

absl::StatusOr<LocalMemory> NobodyElse() {
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (::ConvertStringSecurityDescriptorToSecurityDescriptorW(
          kNobody, SDDL_REVISION_1, &descriptor, nullptr) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(
        error,
        "ConvertStringSecurityDescriptorToSecurityDescriptorW(OWNER RIGHTS)");
  }
  return LocalMemory::Adopt(descriptor);
}

std::size_t RoundedToPages(std::size_t size) {
  SYSTEM_INFO system = {};
  ::GetSystemInfo(&system);
  const std::size_t page = system.dwPageSize;
  return (size + page - 1) / page * page;
}

absl::StatusOr<MappedView> Map(HANDLE section, std::size_t size,
                               PeerAccess access) {
  const DWORD rights = access == PeerAccess::kReadWrite
                           ? FILE_MAP_READ | FILE_MAP_WRITE
                           : FILE_MAP_READ;
  void* const data = ::MapViewOfFile(section, rights, 0, 0, size);
  if (data == nullptr) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("MapViewOfFile(", size,
                                       " bytes of shared memory)"));
  }
  return MappedView::Adopt({static_cast<std::uint8_t*>(data), size});
}

std::uint32_t RightsFor(PeerAccess access) {
  return kSectionQuery | kSectionMapRead |
         (access == PeerAccess::kReadWrite ? kSectionMapWrite : 0);
}

absl::Status Unfit(absl::string_view is, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the handle for shared control memory is ", is, "; expected ", expected,
      ". Its sender is no vmmshare, or means harm: hang up"));
}

absl::Status CheckFit(const OsHandle& handle, std::size_t size,
                      PeerAccess access) {
  ASSIGN_OR_RETURN(const KernelObject object, InspectHandle(handle.get()));
  if (object.type != "Section") {
    return Unfit(absl::StrCat("of type ", object.type), "a Section");
  }
  const std::uint32_t needed = RightsFor(access);
  if ((object.access & needed) != needed) {
    return Unfit(absl::StrFormat("a section with access 0x%x", object.access),
                 absl::StrFormat("one with 0x%x", needed));
  }
  ASSIGN_OR_RETURN(const SectionFacts section, InspectSection(handle.get()));
  if (section.has_file || section.is_image) {
    return Unfit(section.is_image ? "a section of a program's image"
                                  : "a section of a file",
                 "one of the paging file");
  }
  if (!section.is_committed) {
    return Unfit("a section without memory, only reserved", "a committed one");
  }
  // The kernel tells the size in whole pages.
  if (const std::size_t rounded = RoundedToPages(size);
      section.size != size && section.size != rounded) {
    return Unfit(absl::StrCat("a section of ", section.size, " bytes"),
                 absl::StrCat(rounded, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

void MappedViewTraits::Close(Value value) {
  Check(::UnmapViewOfFile(value.data()) != 0,
        "UnmapViewOfFile() refused a view that was mapped");
}

absl::StatusOr<SharedMemory> SharedMemory::Create(std::size_t size,
                                                  PeerAccess peers) {
  Check(size > 0, "SharedMemory::Create() of 0 bytes");
  ASSIGN_OR_RETURN(const LocalMemory descriptor, NobodyElse());
  SECURITY_ATTRIBUTES attributes = {};
  attributes.nLength = sizeof(attributes);
  attributes.lpSecurityDescriptor = descriptor.get();
  const HANDLE raw =
      ::CreateFileMappingW(INVALID_HANDLE_VALUE, &attributes, PAGE_READWRITE,
                           static_cast<DWORD>(std::uint64_t{size} >> 32),
                           static_cast<DWORD>(size), nullptr);
  if (raw == nullptr) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("CreateFileMappingW(", size, " bytes)"));
  }
  const OsHandle section =
      OsHandle::Adopt(reinterpret_cast<std::intptr_t>(raw));
  ASSIGN_OR_RETURN(MappedView view, Map(raw, size, PeerAccess::kReadWrite));
  HANDLE given = nullptr;
  if (::DuplicateHandle(::GetCurrentProcess(), raw, ::GetCurrentProcess(),
                        &given, RightsFor(peers), /*inherit=*/FALSE, 0) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, "DuplicateHandle(section, fewer rights)");
  }
  return SharedMemory(OsHandle::Adopt(reinterpret_cast<std::intptr_t>(given)),
                      std::move(view), /*writable=*/true);
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const OsHandle& handle,
                                                std::size_t size,
                                                PeerAccess access) {
  Check(size > 0, "SharedMemory::Open() of 0 bytes");
  RETURN_IF_ERROR(CheckFit(handle, size, access));
  ASSIGN_OR_RETURN(MappedView view,
                   Map(reinterpret_cast<HANDLE>(handle.get()), size, access));
  return SharedMemory(OsHandle(), std::move(view),
                      access == PeerAccess::kReadWrite);
}

}  // namespace vmm::platform
