#include "platform/os/surroundings.h"

// First: the next ones need it.
#include <windows.h>

#include <string_view>
#include <vector>

#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {

absl::StatusOr<DescriptorLimits> GetDescriptorLimits() {
  return absl::UnimplementedError("Windows has no limit of descriptors");
}

absl::StatusOr<FileSpace> SharedMemorySpace(const std::string&) {
  return absl::UnimplementedError("Windows has no /dev/shm");
}

absl::StatusOr<std::string> ContainerMark(const std::string&) {
  return absl::UnimplementedError("Windows containers are not looked for");
}

absl::StatusOr<bool> IsWsl2(const std::string&) { return false; }

absl::StatusOr<int> PtraceScope(const std::string&) {
  return absl::UnimplementedError("Windows has no ptrace");
}

absl::StatusOr<bool> HasNvidiaControlNode(const std::string&) {
  return absl::UnimplementedError("Windows has no /dev/nvidiactl");
}

absl::StatusOr<bool> HasWsl2GpuNode(const std::string&) {
  return absl::UnimplementedError("Windows has no /dev/dxg");
}

absl::StatusOr<MpsDaemon> LookForMps(const std::string&) {
  return absl::UnimplementedError("Windows has no MPS");
}

absl::StatusOr<NvidiaModules> LookForNvidiaModules(const std::string&) {
  return absl::UnimplementedError("Windows has no modules of the kernel");
}

absl::StatusOr<std::string> FolderOfProgram() {
  std::vector<wchar_t> path(32768);
  const DWORD size = ::GetModuleFileNameW(nullptr, path.data(),
                                          static_cast<DWORD>(path.size()));
  if (size == 0 || size == path.size()) {
    return LastError().Of("GetModuleFileNameW()");
  }
  const std::string whole = ToUtf8(std::wstring_view(path.data(), size));
  return whole.substr(0, whole.find_last_of("/\\"));
}

bool StandardOutputTakesColour() {
  // Fails for what is no console; older consoles do not know the flag.
  const HANDLE output = ::GetStdHandle(STD_OUTPUT_HANDLE);
  DWORD mode = 0;
  return ::GetConsoleMode(output, &mode) != 0 &&
         (mode & ENABLE_VIRTUAL_TERMINAL_PROCESSING) != 0;
}

}  // namespace vmm::platform
