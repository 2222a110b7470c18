// Which machine this is, and random bytes from its operating system.
#ifndef VMMSHARE_PLATFORM_OS_MACHINE_H_
#define VMMSHARE_PLATFORM_OS_MACHINE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace vmm::platform {

struct Machine {
  // Differs between machines and between two boots of one; the same in all
  // containers of a machine. What can travel as an OS handle travels only
  // between processes with the same boot id.
  std::array<std::uint8_t, 16> boot_id{};
  // For messages: containers of one machine have different ones.
  std::string host_name;
};

// Never null. Read once, then kept: every ticket made or opened asks for it.
// UNAVAILABLE or others as the operating system answers (a container without
// /proc has no boot id). Thread-safe.
absl::StatusOr<const Machine*> ThisMachine();

// The same, asked of the operating system each time. `root` is a folder in whose
// /proc is looked in place of the system's (not on Windows); "" is the system
// itself.
absl::StatusOr<Machine> ReadMachine(const std::string& root = "");

// Fills `bytes` with random bytes fit for secrets.
absl::Status FillRandom(absl::Span<std::uint8_t> bytes);

// A name that nobody else draws: 128 random bits as 32 hexadecimal digits.
absl::StatusOr<std::string> RandomName();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_MACHINE_H_
