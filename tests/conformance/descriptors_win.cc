#include <windows.h>

#include <array>
#include <cstring>
#include <functional>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "platform/base/check.h"
#include "platform/cuda/handle_attributes.h"
#include "platform/hostdriver/object_names_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/machine.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {

const CUmemAllocationHandleType kFd = CU_MEM_HANDLE_TYPE_WIN32;
const CUmemAllocationHandleType kForeignFd =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

namespace {

using platform::Check;
using platform::OsHandle;

HANDLE Raw(int handle) {
  return reinterpret_cast<HANDLE>(static_cast<std::intptr_t>(handle));
}

// Handles have 32 significant bits, so that an int holds one.
int Number(HANDLE handle) {
  Check(handle != nullptr, "a handle of a test could not be made");
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
}

HANDLE Copy(HANDLE from, HANDLE handle, bool inherit, DWORD access = 0) {
  HANDLE copy = nullptr;
  Check(
      ::DuplicateHandle(from, handle, ::GetCurrentProcess(), &copy, access,
                        inherit, access == 0 ? DUPLICATE_SAME_ACCESS : 0) != 0,
      "DuplicateHandle() failed");
  return copy;
}

// Calls `use` with a socket as the pipe's calls take it.
bool With(int socket,
          const std::function<absl::Status(const OsHandle& pipe,
                                           const OsHandle& event)>& use) {
  absl::StatusOr<OsHandle> event = platform::MakeEvent();
  Check(event.ok(), "no event");
  OsHandle pipe = OsHandle::Adopt(socket);
  const absl::Status status = use(pipe, *event);
  (void)std::move(pipe).Relinquish();
  return status.ok();
}

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

int Section(const std::string& name, std::uint64_t size) {
  return Number(::CreateFileMappingW(
      INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE,
      static_cast<DWORD>(size >> 32), static_cast<DWORD>(size),
      name.empty() ? nullptr : hostdriver::LocalName(name).c_str()));
}

struct HandleMessage {
  std::uint32_t process;
  std::int32_t handle;
};

}  // namespace

void* HandleAttributes() {
  absl::StatusOr<void*> attributes = platform::NativeHandleAttributes();
  Check(attributes.ok(), "no handle attributes");
  return *attributes;
}

CUresult ExportTo(const platform::DriverTable& cu, int* handle,
                  CUmemGenericAllocationHandle memory) {
  HANDLE raw = nullptr;
  const CUresult result = cu.cuMemExportToShareableHandle(&raw, memory, kFd, 0);
  if (result == CUDA_SUCCESS) *handle = Number(raw);
  return result;
}

CUresult ExportPoolTo(const platform::DriverTable& cu, int* handle,
                      CUmemoryPool pool) {
  HANDLE raw = nullptr;
  const CUresult result =
      cu.cuMemPoolExportToShareableHandle(&raw, pool, kFd, 0);
  if (result == CUDA_SUCCESS) *handle = Number(raw);
  return result;
}

bool CanFork() { return false; }
bool LibrariesMayEndFirst() { return false; }

void CloseDescriptor(int fd) { ::CloseHandle(Raw(fd)); }

int Inheritable(int fd) {
  return Number(Copy(::GetCurrentProcess(), Raw(fd), /*inherit=*/true));
}

bool ClosesOnExec(int fd) {
  DWORD flags = 0;
  return ::GetHandleInformation(Raw(fd), &flags) != 0 &&
         (flags & HANDLE_FLAG_INHERIT) == 0;
}

std::vector<std::pair<std::string, int>> DescriptorsThatAreNoMemory() {
  wchar_t program[MAX_PATH];
  ::GetModuleFileNameW(nullptr, program, MAX_PATH);
  const HANDLE file =
      ::CreateFileW(program, GENERIC_READ | GENERIC_EXECUTE, FILE_SHARE_READ,
                    nullptr, OPEN_EXISTING, 0, nullptr);
  Check(file != INVALID_HANDLE_VALUE, "this program's file cannot be opened");
  return {{"an event", Number(::CreateEventW(nullptr, TRUE, FALSE, nullptr))},
          {"a mutex", Number(::CreateMutexW(nullptr, FALSE, nullptr))},
          {"a process",
           Number(Copy(::GetCurrentProcess(), ::GetCurrentProcess(), false))},
          {"a section of a file",
           Number(::CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0,
                                       nullptr))},
          {"an image section",
           Number(::CreateFileMappingW(file, nullptr, PAGE_READONLY | SEC_IMAGE,
                                       0, 0, nullptr))},
          {"a file", Number(file)},
          {"a section without a name", Section("", 2 << 20)},
          {"no handle", 0},
          {"this process's pseudo handle", -1},
          {"this thread's pseudo handle", -2},
          {"a number that is not open", 9999}};
}

std::vector<int> ImpostorsOfMemory(int exported) {
  // "\...\LABEL.SIZE.RANDOM"
  std::string name = hostdriver::Narrow(hostdriver::NameOfHandle(exported));
  name = name.substr(name.rfind('\\') + 1);
  const std::string tail = name.substr(name.rfind('.', name.rfind('.') - 1));
  const std::string label = name.substr(0, name.size() - tail.size());
  const auto fresh = [] { return ".200000." + hostdriver::RandomDigits(); };
  constexpr std::uint64_t kSize = 2 << 20;
  const DWORD query = SECTION_QUERY;
  return {
      Section(label + fresh(), 4096),
      Section("x" + label + fresh(), kSize),
      Section(label + "0" + fresh(), kSize),
      Section(label.substr(0, label.size() - 1) + fresh(), kSize),
      Section(label, kSize),
      Number(::CreateEventW(nullptr, TRUE, FALSE,
                            hostdriver::LocalName(label + fresh()).c_str())),
      Number(Copy(::GetCurrentProcess(), Raw(exported), false,
                  query | SECTION_MAP_READ)),
      Number(Copy(::GetCurrentProcess(), Raw(exported), false, query))};
}

std::vector<std::string> SharedFilesNamed(const std::string& part) {
  // Sections with a name, in the folder of one that is made for this.
  const int probe = Section("vmmshare-test." + hostdriver::RandomDigits(), 1);
  const std::wstring name = hostdriver::NameOfHandle(probe);
  std::vector<std::string> found;
  for (const std::string& each :
       hostdriver::SectionsIn(name.substr(0, name.rfind(L'\\')))) {
    if (each.find(part) != std::string::npos) found.push_back(each);
  }
  CloseDescriptor(probe);
  return found;
}

SocketPair MakeSocketPair() {
  std::array<std::uint8_t, 16> random;
  Check(platform::FillRandom(absl::MakeSpan(random)).ok(), "no random bytes");
  std::wstring name = L"\\\\.\\pipe\\vmmshare-test-";
  for (const std::uint8_t byte : random) {
    name += static_cast<wchar_t>(L'a' + byte / 16);
    name += static_cast<wchar_t>(L'a' + byte % 16);
  }
  absl::StatusOr<OsHandle> mine =
      platform::CreatePipeInstance(name, nullptr, /*first=*/true);
  Check(mine.ok(), "a pipe could not be made");
  absl::StatusOr<OsHandle> other =
      platform::OpenPipe(name, "a test's pipe", Deadline());
  Check(other.ok(), "a pipe could not be opened");
  const int childs = Inheritable(static_cast<int>(other->get()));
  return {static_cast<int>(std::move(*mine).Relinquish()), childs};
}

bool SendBytes(int socket, const void* data, std::size_t size) {
  return With(socket, [&](const OsHandle& pipe, const OsHandle& event) {
    return platform::WriteMessage(
        pipe, event,
        absl::MakeConstSpan(static_cast<const std::uint8_t*>(data), size),
        Deadline(), {}, "room");
  });
}

bool ReceiveBytes(int socket, void* data, std::size_t size) {
  return With(socket, [&](const OsHandle& pipe, const OsHandle& event) {
    absl::StatusOr<std::size_t> got = platform::ReadMessage(
        pipe, event, absl::MakeSpan(static_cast<std::uint8_t*>(data), size),
        Deadline(), {}, "bytes");
    if (!got.ok()) return got.status();
    return *got == size ? absl::OkStatus() : absl::DataLossError("too short");
  });
}

bool SendDescriptor(int socket, int fd) {
  const HandleMessage message = {::GetCurrentProcessId(), fd};
  char taken = 0;
  return SendBytes(socket, &message, sizeof(message)) &&
         ReceiveBytes(socket, &taken, 1);
}

bool ReceiveDescriptor(int socket, int* fd) {
  HandleMessage message = {};
  if (!ReceiveBytes(socket, &message, sizeof(message))) return false;
  const HANDLE process =
      ::OpenProcess(PROCESS_DUP_HANDLE, FALSE, message.process);
  if (process == nullptr) return false;
  *fd = Number(Copy(process, Raw(message.handle), false));
  ::CloseHandle(process);
  const char taken = 1;
  return SendBytes(socket, &taken, 1);
}

int RunForked(int (*)()) { platform::Die("Windows has no fork"); }

}  // namespace vmm::testing
