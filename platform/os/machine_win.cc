#include "platform/os/machine.h"

// First: the next ones need it.
#include <windows.h>
// After the line above.
#include <bcrypt.h>
#include <winternl.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "platform/base/hex.h"
#include "platform/base/status_macros.h"
#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {
namespace {

constexpr wchar_t kKey[] = L"SOFTWARE\\Microsoft\\Cryptography";
constexpr wchar_t kValue[] = L"MachineGuid";

// The page that the kernel shows to every process, and in it the number of
// this boot: KUSER_SHARED_DATA::BootId, as ntddk.h lays it out.
constexpr std::uintptr_t kSharedPage = 0x7FFE0000;
constexpr std::uintptr_t kBootIdOffset = 0x2C4;

// SystemTimeOfDayInformation.
struct TimeOfDay {
  LARGE_INTEGER boot_time;
  LARGE_INTEGER current_time;
  LARGE_INTEGER time_zone_bias;
  ULONG time_zone_id;
  ULONG reserved;
  ULONGLONG boot_time_bias;
  ULONGLONG sleep_time_bias;
};

// A number that differs between two boots and is the same for all processes of
// one. Not the time of the boot where there is a counter: Windows moves that
// time when somebody sets the clock.
absl::StatusOr<std::uint64_t> BootNumber() {
  const auto counter =
      *reinterpret_cast<const volatile ULONG*>(kSharedPage + kBootIdOffset);
  if (counter != 0) return counter;
  // Wine has no counter; its server's start is the boot.
  TimeOfDay time = {};
  if (const NTSTATUS status =
          ::NtQuerySystemInformation(static_cast<SYSTEM_INFORMATION_CLASS>(3),
                                     &time, sizeof(time), nullptr);
      status < 0) {
    return OsError(static_cast<int>(::RtlNtStatusToDosError(status)),
                   "NtQuerySystemInformation(SystemTimeOfDayInformation)");
  }
  return static_cast<std::uint64_t>(time.boot_time.QuadPart);
}

}  // namespace

absl::StatusOr<Machine> ReadMachine(const std::string&) {
  wchar_t text[64] = {};
  DWORD size = sizeof(text) - sizeof(wchar_t);
  if (const LSTATUS error = ::RegGetValueW(
          HKEY_LOCAL_MACHINE, kKey, kValue,
          RRF_RT_REG_SZ | RRF_SUBKEY_WOW6464KEY, nullptr, text, &size);
      error != ERROR_SUCCESS) {
    return OsError(error,
                   "RegGetValueW(HKLM\\SOFTWARE\\Microsoft\\Cryptography, "
                   "MachineGuid)",
                   "vmmshare needs it to tell machines apart.");
  }
  const std::string digits = absl::AsciiStrToLower(
      absl::StrReplaceAll(ToUtf8(text), {{"-", ""}, {"{", ""}, {"}", ""}}));
  const std::optional<std::string> bytes = BytesFromHex(digits);
  Machine machine;
  if (!bytes.has_value() || bytes->size() != machine.boot_id.size()) {
    return absl::UnavailableError(
        absl::StrCat("the registry's MachineGuid is \"",
                     absl::CEscape(ToUtf8(text)), "\"; expected a UUID"));
  }
  std::copy(bytes->begin(), bytes->end(), machine.boot_id.begin());
  ASSIGN_OR_RETURN(const std::uint64_t boot, BootNumber());
  for (std::size_t i = 0; i < sizeof(boot); ++i) {
    machine.boot_id[i] ^= static_cast<std::uint8_t>(boot >> (8 * i));
  }

  wchar_t name[256] = {};
  DWORD length = 256;
  if (::GetComputerNameExW(ComputerNameDnsHostname, name, &length) == 0) {
    return LastError().Of("GetComputerNameExW(ComputerNameDnsHostname)");
  }
  machine.host_name = ToUtf8(name);
  return machine;
}

absl::Status FillRandom(absl::Span<std::uint8_t> bytes) {
  if (const NTSTATUS status = ::BCryptGenRandom(
          nullptr, bytes.data(), static_cast<ULONG>(bytes.size()),
          BCRYPT_USE_SYSTEM_PREFERRED_RNG);
      status < 0) {
    return OsError(static_cast<int>(::RtlNtStatusToDosError(status)),
                   absl::StrCat("BCryptGenRandom(", bytes.size(), ")"));
  }
  return absl::OkStatus();
}

}  // namespace vmm::platform
