#include "platform/os/kernel_object_win.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include "absl/strings/str_cat.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/utf16_win.h"

// Exported by ntdll.dll and described in the driver kit's headers, but
// declared in none of the SDK's.
extern "C" NTSTATUS NTAPI NtQuerySection(HANDLE section, int information_class,
                                         void* information, SIZE_T length,
                                         SIZE_T* returned);

namespace vmm::platform {
namespace {

// ObjectBasicInformation, of which only the access is of interest.
struct BasicInformation {
  ULONG attributes;
  ACCESS_MASK granted_access;
  ULONG other[12];
};
static_assert(sizeof(BasicInformation) == 56);

// ObjectTypeInformation: a name, then more than is needed here.
struct TypeInformation {
  UNICODE_STRING name;
  ULONG_PTR other[128];
};

// SectionBasicInformation.
struct SectionInformation {
  void* base;
  ULONG attributes;
  LARGE_INTEGER size;
};

constexpr ULONG kSecFile = 0x00800000;
constexpr ULONG kSecImage = 0x01000000;
constexpr ULONG kSecCommit = 0x08000000;

absl::Status NtError(NTSTATUS status, absl::string_view call,
                     std::intptr_t handle) {
  return OsError(static_cast<int>(::RtlNtStatusToDosError(status)),
                 absl::StrCat(call, "(", handle, ")"));
}

}  // namespace

absl::StatusOr<KernelObject> InspectHandle(std::intptr_t handle) {
  // Asked about -1 the kernel would tell of this process.
  if (!OsHandleTraits::Holds(handle)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "handle ", handle,
        handle == 0 ? " is none" : " is a pseudo handle, which means \"me\"",
        "; expected an open handle"));
  }
  const auto raw = reinterpret_cast<HANDLE>(handle);
  BasicInformation basic = {};
  ULONG size = 0;
  NTSTATUS status =
      ::NtQueryObject(raw, static_cast<OBJECT_INFORMATION_CLASS>(0), &basic,
                      sizeof(basic), &size);
  if (status < 0) return NtError(status, "NtQueryObject", handle);
  TypeInformation type = {};
  status = ::NtQueryObject(raw, static_cast<OBJECT_INFORMATION_CLASS>(2), &type,
                           sizeof(type), &size);
  if (status < 0) {
    return NtError(status, "NtQueryObject", handle);
  }
  return KernelObject{
      ToUtf8(std::wstring_view(type.name.Buffer,
                               type.name.Length / sizeof(wchar_t))),
      basic.granted_access};
}

absl::StatusOr<SectionFacts> InspectSection(std::intptr_t handle) {
  SectionInformation information = {};
  if (const NTSTATUS status = ::NtQuerySection(
          reinterpret_cast<HANDLE>(handle), /*information_class=*/0,
          &information, sizeof(information), nullptr);
      status < 0) {
    return NtError(status, "NtQuerySection", handle);
  }
  return SectionFacts{static_cast<std::uint64_t>(information.size.QuadPart),
                      (information.attributes & kSecFile) != 0,
                      (information.attributes & kSecImage) != 0,
                      (information.attributes & kSecCommit) != 0};
}

}  // namespace vmm::platform
