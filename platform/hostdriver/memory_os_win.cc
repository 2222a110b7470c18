// Memory objects are sections with a name, which says what they are and which
// goes with their last handle. A name cannot be changed, so a process that
// receives one can believe it.
#include "platform/hostdriver/memory_os.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/object_names_win.h"

namespace vmm::hostdriver {

const unsigned long long kNativeHandleType = CU_MEM_HANDLE_TYPE_WIN32;

namespace {

// Addresses of this window are handed out without asking the system for them:
// a reservation of VirtualAlloc cannot be given up in parts for a view of a
// section, and placeholders, with which it could, are not everywhere. Windows
// puts nothing here that did not ask for the place: programs, libraries and
// heaps are above 0x7ff000000000 or below 0x010000000000.
constexpr std::uint64_t kWindowBegin = 0x2000'0000'0000;
constexpr std::uint64_t kWindowEnd = 0x6000'0000'0000;

struct Reservations {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> ends;  // By begin.

  // Whether [begin, begin + size) is in the window and free.
  bool IsFree(std::uint64_t begin, std::uint64_t size) const {
    if (begin < kWindowBegin || begin >= kWindowEnd ||
        size > kWindowEnd - begin) {
      return false;
    }
    const auto next = ends.lower_bound(begin);
    if (next != ends.end() && next->first < begin + size) return false;
    return next == ends.begin() || std::prev(next)->second <= begin;
  }
};

Reservations& All() {
  static Reservations& all = *new Reservations;
  return all;
}

HANDLE Raw(OsMemory memory) { return reinterpret_cast<HANDLE>(memory); }

void* Pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);
}

bool IsMapped(std::uint64_t address) {
  MEMORY_BASIC_INFORMATION about = {};
  return VirtualQuery(Pointer(address), &about, sizeof(about)) != 0 &&
         about.State == MEM_COMMIT && about.Type == MEM_MAPPED;
}

// The label in an object's full name: "\...\<label>.<random>".
std::optional<MemoryLabel> LabelOf(OsMemory memory) {
  const std::string name = Narrow(NameOfHandle(memory));
  const std::size_t begin = name.rfind('\\');
  const std::size_t end = name.rfind('.');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return std::nullopt;
  }
  // Between the label and the random digits stands the size.
  const std::size_t size = name.rfind('.', end - 1);
  if (size == std::string::npos || size < begin) return std::nullopt;
  return ParseLabel(std::string_view(name).substr(begin + 1, size - begin - 1));
}

// What `memory` is, which is closed if CreateMemory() did not make it.
std::optional<OpenedMemory> Inspect(OsMemory memory) {
  constexpr std::uint32_t kNeeded =
      SECTION_QUERY | SECTION_MAP_READ | SECTION_MAP_WRITE;
  std::optional<MemoryLabel> label;
  std::uint64_t size = 0;
  if (TypeOfHandle(memory) == "Section" &&
      (AccessOfHandle(memory) & kNeeded) == kNeeded) {
    label = LabelOf(memory);
    size = SizeOfSection(memory);
  }
  if (!label || size == 0 || size % kGranularity != 0) {
    CloseHandle(Raw(memory));
    return std::nullopt;
  }
  return OpenedMemory{memory, *label, static_cast<std::size_t>(size)};
}

}  // namespace

std::optional<OsMemory> CreateMemory(const MemoryLabel& label,
                                     std::size_t size) {
  const std::string random = RandomDigits();
  if (random.empty()) return std::nullopt;
  char digits[20];
  std::snprintf(digits, sizeof(digits), "%zx", size);
  const std::wstring name =
      LocalName(LabelText(label) + "." + digits + "." + random);
  const HANDLE section =
      CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE,
                         static_cast<DWORD>(std::uint64_t{size} >> 32),
                         static_cast<DWORD>(size), name.c_str());
  if (section == nullptr) return std::nullopt;
  if (GetLastError() == ERROR_ALREADY_EXISTS) {
    CloseHandle(section);
    return std::nullopt;
  }
  return reinterpret_cast<OsMemory>(section);
}

void CloseMemory(OsMemory memory) {
  if (memory > 0) CloseHandle(Raw(memory));
}

std::optional<OsMemory> DuplicateMemory(OsMemory memory) {
  HANDLE copy = nullptr;
  // A pseudo handle would become one of this process.
  if (memory <= 0 ||
      DuplicateHandle(GetCurrentProcess(), Raw(memory), GetCurrentProcess(),
                      &copy, 0, FALSE, DUPLICATE_SAME_ACCESS) == 0) {
    return std::nullopt;
  }
  return reinterpret_cast<OsMemory>(copy);
}

void InheritOnExec(OsMemory) {}

void StoreExported(OsMemory memory, void* shareable) {
  *static_cast<HANDLE*>(shareable) = Raw(memory);
}

bool AreHandleAttributes(const void* data) {
  if (data == nullptr) return false;
  // SECURITY_ATTRIBUTES begin with a length too, and another one.
  const auto* attributes = static_cast<const OBJECT_ATTRIBUTES*>(data);
  return attributes->Length == sizeof(*attributes);
}

bool ApplyHandleAttributes(OsMemory memory, const void* data) {
  const auto* attributes = static_cast<const OBJECT_ATTRIBUTES*>(data);
  return attributes->SecurityDescriptor == nullptr ||
         SetKernelObjectSecurity(Raw(memory), DACL_SECURITY_INFORMATION,
                                 static_cast<PSECURITY_DESCRIPTOR>(
                                     attributes->SecurityDescriptor)) != 0;
}

std::optional<OpenedMemory> OpenExported(std::intptr_t handle) {
  // Every check is on our own duplicate: the caller's may be closed and
  // reused by another thread meanwhile.
  const std::optional<OsMemory> memory = DuplicateMemory(handle);
  if (!memory) return std::nullopt;
  return Inspect(*memory);
}

std::uint64_t ProcessNumber() { return GetCurrentProcessId(); }

std::optional<OpenedMemory> OpenOf(std::uint64_t process, OsMemory memory,
                                   std::uint64_t id) {
  if (process == 0 || process > UINT32_MAX || memory <= 0) return std::nullopt;
  const HANDLE owner =
      OpenProcess(PROCESS_DUP_HANDLE, FALSE, static_cast<DWORD>(process));
  if (owner == nullptr) return std::nullopt;
  HANDLE copy = nullptr;
  const bool copied =
      DuplicateHandle(owner, Raw(memory), GetCurrentProcess(), &copy, 0, FALSE,
                      DUPLICATE_SAME_ACCESS) != 0;
  CloseHandle(owner);
  if (!copied) return std::nullopt;
  std::optional<OpenedMemory> opened =
      Inspect(reinterpret_cast<OsMemory>(copy));
  if (opened && opened->label.id != id) {
    CloseMemory(opened->memory);
    return std::nullopt;
  }
  return opened;
}

std::uint64_t RandomNumber() {
  return std::strtoull(RandomDigits().c_str(), nullptr, 16);
}

void* MapWhole(OsMemory memory, std::size_t size, bool) {
  return MapViewOfFile(Raw(memory), FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, size);
}

void UnmapWhole(void* data, std::size_t) { UnmapViewOfFile(data); }

std::uint64_t ReserveAddresses(std::size_t size, std::size_t alignment,
                               std::uint64_t hint) {
  Reservations& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (hint != 0 && hint % alignment == 0 && all.IsFree(hint, size)) {
    all.ends[hint] = hint + size;
    return hint;
  }
  std::uint64_t begin = RoundUp(kWindowBegin, alignment);
  for (auto next = all.ends.begin(); !all.IsFree(begin, size); ++next) {
    if (next == all.ends.end()) return 0;
    begin = RoundUp(next->second, alignment);
  }
  all.ends[begin] = begin + size;
  return begin;
}

void FreeAddresses(std::uint64_t address, std::size_t) {
  Reservations& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.ends.erase(address);
}

bool ExposeMemory(OsMemory memory, std::uint64_t address, std::size_t size,
                  CpuAccess access) {
  if (access == CpuAccess::kNone) return HideMemory(address, size);
  if (!IsMapped(address) &&
      MapViewOfFileEx(Raw(memory), FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, size,
                      Pointer(address)) == nullptr) {
    return false;
  }
  DWORD before = 0;
  return VirtualProtect(
             Pointer(address), size,
             access == CpuAccess::kRead ? PAGE_READONLY : PAGE_READWRITE,
             &before) != 0;
}

bool HideMemory(std::uint64_t address, std::size_t) {
  return !IsMapped(address) || UnmapViewOfFile(Pointer(address)) != 0;
}

}  // namespace vmm::hostdriver
