// What the tests of Windows' side of platform/ share.
#ifndef VMMSHARE_TESTS_OS_WIN_TEST_H_
#define VMMSHARE_TESTS_OS_WIN_TEST_H_

#include <gtest/gtest.h>
#include <windows.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/pipe_win.h"
#include "platform/ipc/transit_win.h"
#include "platform/os/os_handle.h"
#include "platform/os/security_win.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"

namespace vmm::platform {

using testing::Late;
using testing::Must;

// Every test leaves the handles as it found them.
class WinTest : public ::testing::Test {
 private:
  testing::ExpectNoNewHandles no_new_handles_;
};

// Whether this is wine, which does not enforce all that Windows does.
inline bool UnderWine() {
  const HMODULE ntdll = ::GetModuleHandleW(L"ntdll.dll");
  return ::GetProcAddress(ntdll, "wine_get_version") != nullptr;
}

// Whether both handles refer to one object.
inline bool IsSameObject(std::intptr_t a, std::intptr_t b) {
  // In kernelbase.dll since Windows 10, and in no import library that all
  // tool chains have.
  using Compare = BOOL(WINAPI*)(HANDLE, HANDLE);
  static const auto compare =
      reinterpret_cast<Compare>(reinterpret_cast<void*>(::GetProcAddress(
          ::GetModuleHandleW(L"kernelbase.dll"), "CompareObjectHandles")));
  return compare != nullptr &&
         compare(reinterpret_cast<HANDLE>(a), reinterpret_cast<HANDLE>(b)) != 0;
}

inline OsHandle Own(HANDLE handle) {
  Check(handle != nullptr && handle != INVALID_HANDLE_VALUE,
        "a handle of a test could not be made");
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(handle));
}

inline OsHandle NewEvent() { return Must(MakeEvent()); }

// A pipe of this user's, as a listener's is.
inline OsHandle OwnPipe(const std::string& address) {
  const LocalMemory descriptor = Must(OwnerAndSystemOnly({}, 0));
  return Must(CreatePipeInstance(Must(PipeName(address)), descriptor.get(),
                                 /*first=*/true));
}

// Waits for the client of `pipe`, an instance that the test made itself.
inline void AwaitClient(const OsHandle& pipe) {
  const OsHandle connected = NewEvent();
  OVERLAPPED operation = {};
  operation.hEvent = Raw(connected);
  if (::ConnectNamedPipe(Raw(pipe), &operation) != 0) return;
  DWORD size = 0;
  const DWORD error = ::GetLastError();
  Check(error == ERROR_PIPE_CONNECTED ||
            (error == ERROR_IO_PENDING &&
             ::GetOverlappedResult(Raw(pipe), &operation, &size, TRUE) != 0),
        "a test's pipe got no client");
}

using Packet = std::vector<std::uint8_t>;

// Waits for the first word of the client of `pipe`: by then its Connect() has
// returned.
inline void AwaitWord(const OsHandle& pipe) {
  Packet word(64);
  Must(ReadMessage(pipe, NewEvent(), absl::MakeSpan(word), Late(), {}, "word")
           .status());
}

// A frame of type 1 with `payload` bytes that states `values.size()` handles,
// and these as their numbers.
inline Packet FrameWith(const std::vector<std::int64_t>& values,
                        std::size_t payload = 4) {
  const auto header =
      EncodeFrameHeader({1, static_cast<std::uint32_t>(payload),
                         static_cast<std::uint16_t>(values.size())});
  Packet packet(header.begin(), header.end());
  packet.resize(packet.size() + payload, 0xAB);
  for (const std::int64_t value : values) {
    packet.resize(packet.size() + kHandleBytes);
    StoreHandle(value, packet.data() + packet.size() - kHandleBytes);
  }
  return packet;
}

// Writes `packet` past all rules of Channel.
inline void SendRaw(const OsHandle& pipe, const Packet& packet) {
  const OsHandle event = NewEvent();
  Must(WriteMessage(pipe, event, packet, Late(), {}, "room"));
}

inline std::vector<std::uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

inline std::string Text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace vmm::platform

#endif  // VMMSHARE_TESTS_OS_WIN_TEST_H_
