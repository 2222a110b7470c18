#include <windows.h>

#include "platform/base/check.h"
#include "tests/ipc/planted_handles.h"

namespace vmm::testing {
namespace {

platform::OsHandle Own(HANDLE handle) {
  platform::Check(handle != nullptr && handle != INVALID_HANDLE_VALUE,
                  "cannot make a handle to plant");
  return platform::OsHandle::Adopt(reinterpret_cast<std::intptr_t>(handle));
}

}  // namespace

std::vector<Planted> PlantedObjects() {
  wchar_t program[MAX_PATH];
  ::GetModuleFileNameW(nullptr, program, MAX_PATH);
  HANDLE process = nullptr;
  ::DuplicateHandle(::GetCurrentProcess(), ::GetCurrentProcess(),
                    ::GetCurrentProcess(), &process,
                    PROCESS_QUERY_LIMITED_INFORMATION, FALSE, 0);
  platform::OsHandle file =
      Own(::CreateFileW(program, GENERIC_READ | GENERIC_EXECUTE,
                        FILE_SHARE_READ, nullptr, OPEN_EXISTING, 0, nullptr));
  const auto raw = reinterpret_cast<HANDLE>(file.get());
  std::vector<Planted> planted;
  planted.push_back(
      {"of type Event", Own(::CreateEventW(nullptr, TRUE, FALSE, nullptr))});
  planted.push_back({"of type Process", Own(process)});
  planted.push_back(
      {"a section of a file",
       Own(::CreateFileMappingW(raw, nullptr, PAGE_READONLY, 0, 0, nullptr))});
  planted.push_back(
      {"a section of a program's image",
       Own(::CreateFileMappingW(raw, nullptr, PAGE_READONLY | SEC_IMAGE, 0, 0,
                                nullptr))});
  planted.push_back({"of type File", std::move(file)});
  return planted;
}

// A section never changes its size; what stands for sealing is that it can be
// written.
std::vector<Planted> CarriedObjects() { return PlantedObjects(); }

platform::OsHandle PlantedMemory(std::uint64_t size, bool sealed) {
  return Own(::CreateFileMappingW(
      INVALID_HANDLE_VALUE, nullptr, sealed ? PAGE_READWRITE : PAGE_READONLY,
      static_cast<DWORD>(size >> 32), static_cast<DWORD>(size), nullptr));
}

std::string WordsForUnsealed() {
  return "expected one that may be read and written";
}
std::string WordsForSize(std::uint64_t size) {
  return "section of " + std::to_string(size) + " bytes";
}

platform::OsHandle ClosedHandle() {
  // Opened and closed it could be another thread's by now.
  return platform::OsHandle::Adopt(0x7ffffff0);
}

bool MayBecomeAnotherUser() { return false; }
void BecomeNobody() { platform::Die("Windows has no setuid"); }
void OpenToEverybody(const std::string&) {}

}  // namespace vmm::testing
