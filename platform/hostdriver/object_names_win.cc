#include "platform/hostdriver/object_names_win.h"

// First: the next ones need it.
#include <windows.h>
// After the line above.
#include <bcrypt.h>
#include <winternl.h>

#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

// Exported by ntdll.dll and declared in none of the SDK's headers.
extern "C" NTSTATUS NTAPI NtQuerySection(HANDLE section, int information_class,
                                         void* information, SIZE_T length,
                                         SIZE_T* returned);
extern "C" NTSTATUS NTAPI NtOpenDirectoryObject(HANDLE* directory,
                                                ACCESS_MASK access,
                                                OBJECT_ATTRIBUTES* attributes);
extern "C" NTSTATUS NTAPI NtQueryDirectoryObject(HANDLE directory, void* buffer,
                                                 ULONG length, BOOLEAN single,
                                                 BOOLEAN restart,
                                                 ULONG* context,
                                                 ULONG* returned);

namespace vmm::hostdriver {
namespace {

constexpr ULONG kDirectoryQuery = 1;
constexpr ULONG kSecFile = 0x00800000;
constexpr ULONG kSecImage = 0x01000000;
// A folder is read by position. When a process, of whatever instance, closes an
// object in between, those behind it move up by one, and the next is missed:
// under wine with its tests in parallel, any one name once in 1,000 passes (our
// measurement). Hence it is read until two passes are the same, which they are
// not if the first missed a name for that reason, and all passes count. Where
// others never rest that is 16 passes, of which each would have to miss it.
constexpr int kMaxPasses = 16;

// What these calls answer: a text and room for its characters.
struct TextBuffer {
  UNICODE_STRING text;
  ULONG_PTR room[1024];
};

struct BasicInformation {
  ULONG attributes;
  ACCESS_MASK granted_access;
  ULONG other[12];
};

struct SectionInformation {
  void* base;
  ULONG attributes;
  LARGE_INTEGER size;
};

std::wstring_view View(const UNICODE_STRING& text) {
  return {text.Buffer, text.Length / sizeof(wchar_t)};
}

std::wstring Query(std::intptr_t handle, int what) {
  TextBuffer buffer = {};
  ULONG size = 0;
  if (handle <= 0 ||
      NtQueryObject(reinterpret_cast<HANDLE>(handle),
                    static_cast<OBJECT_INFORMATION_CLASS>(what), &buffer,
                    sizeof(buffer), &size) < 0 ||
      buffer.text.Buffer == nullptr) {
    return L"";
  }
  return std::wstring(View(buffer.text));
}

// One pass over a folder: the names of all objects there, of which those of
// sections are also added to `sections`.
std::vector<std::wstring> ReadOnce(const std::wstring& folder,
                                   std::set<std::string>& sections) {
  std::wstring path = folder;
  UNICODE_STRING name = {};
  name.Buffer = path.data();
  name.Length = static_cast<USHORT>(path.size() * sizeof(wchar_t));
  name.MaximumLength = name.Length;
  OBJECT_ATTRIBUTES attributes = {};
  attributes.Length = sizeof(attributes);
  attributes.ObjectName = &name;
  std::vector<std::wstring> names;
  HANDLE directory = nullptr;
  if (NtOpenDirectoryObject(&directory, kDirectoryQuery, &attributes) < 0) {
    return names;
  }
  struct {
    UNICODE_STRING name;
    UNICODE_STRING type;
    ULONG_PTR room[1024];
  } entry;
  ULONG context = 0;
  ULONG size = 0;
  // One at a time: what more at once looks like differs between systems, and
  // wine 8 cannot.
  while (NtQueryDirectoryObject(directory, &entry, sizeof(entry),
                                /*single=*/TRUE, /*restart=*/FALSE, &context,
                                &size) == 0) {
    names.emplace_back(View(entry.name));
    if (View(entry.type) == L"Section") sections.insert(Narrow(names.back()));
  }
  CloseHandle(directory);
  return names;
}

}  // namespace

std::string Narrow(std::wstring_view text) {
  std::string narrow;
  for (const wchar_t c : text) {
    narrow += c > 0 && c < 128 ? static_cast<char>(c) : '?';
  }
  return narrow;
}

std::wstring LocalName(std::string_view name) {
  return L"Local\\" + std::wstring(name.begin(), name.end());
}

std::string TypeOfHandle(std::intptr_t handle) {
  return Narrow(Query(handle, 2));
}

std::wstring NameOfHandle(std::intptr_t handle) { return Query(handle, 1); }

std::uint32_t AccessOfHandle(std::intptr_t handle) {
  BasicInformation basic = {};
  ULONG size = 0;
  return handle > 0 && NtQueryObject(reinterpret_cast<HANDLE>(handle),
                                     static_cast<OBJECT_INFORMATION_CLASS>(0),
                                     &basic, sizeof(basic), &size) >= 0
             ? basic.granted_access
             : 0;
}

std::uint64_t SizeOfSection(std::intptr_t handle) {
  SectionInformation information = {};
  if (NtQuerySection(reinterpret_cast<HANDLE>(handle), 0, &information,
                     sizeof(information), nullptr) < 0 ||
      (information.attributes & (kSecFile | kSecImage)) != 0) {
    return 0;
  }
  return static_cast<std::uint64_t>(information.size.QuadPart);
}

std::set<std::string> SectionsIn(const std::wstring& folder) {
  std::set<std::string> sections;
  std::vector<std::wstring> previous;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    std::vector<std::wstring> names = ReadOnce(folder, sections);
    if (pass > 0 && names == previous) break;
    previous = std::move(names);
  }
  return sections;
}

std::string RandomDigits() {
  std::uint64_t number = 0;
  if (BCryptGenRandom(nullptr, reinterpret_cast<UCHAR*>(&number),
                      sizeof(number), BCRYPT_USE_SYSTEM_PREFERRED_RNG) < 0) {
    return "";
  }
  char digits[20];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, number);
  return digits;
}

}  // namespace vmm::hostdriver
