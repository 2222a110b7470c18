// Ticket: plain bytes that describe an allocation to another process.
//
// A ticket says everything an importer must know and the handle does not tell:
// the kind of handle, the sizes, the device by UUID, the owner, the machine.
// It holds no pid, no descriptor number and no pointer, because those mean
// something else in the receiver. Having a ticket is not having the memory:
// that takes the handles, which come over a channel (transfer.h) or from the
// owner's endpoint (endpoint.h).
//
// docs/wire_format.md has the byte table.
#ifndef VMMSHARE_VMM_SHARE_TICKET_H_
#define VMMSHARE_VMM_SHARE_TICKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"

namespace vmm {

inline constexpr std::size_t kTicketBytes = 192;
inline constexpr std::uint16_t kTicketVersion = 1;
// Chunks of one allocation that a peer accepts: bounds what it must hold.
inline constexpr std::size_t kMaxChunks = 65536;

// A value.
struct Ticket {
  HandleKind kind = HandleKind::kPosixFd;
  bool host_memory_driver = false;  // Made by the host-memory driver.
  // The owner made it with CUDA's gpuDirectRDMACapable, of which the driver does
  // not tell importers.
  bool rdma_capable = false;
  ChunkLayout layout;
  std::uint64_t requested_size = 0;
  MemoryId id;
  DeviceUuid device;  // That it was created with.
  // The NUMA node, for memory of the host; nullopt for memory of `device`.
  std::optional<std::uint32_t> host_numa_node;
  std::array<std::uint8_t, 16> boot_id{};
  // For messages; cut to 63 printable characters. Empty: nobody has said.
  std::string host_name;

  // "1048576 bytes of GPU-..., shared as POSIX fd by host x".
  std::string Describe() const;
  friend bool operator==(const Ticket&, const Ticket&) = default;
};

// The ticket for sharing `memory` as `kind`. FAILED_PRECONDITION when the
// memory was not created with that kind: the message has the kinds it has.
// INVALID_ARGUMENT when it has more than kMaxChunks chunks.
absl::StatusOr<Ticket> MakeTicket(const Shareable& memory, HandleKind kind);

// Always kTicketBytes bytes.
std::vector<std::uint8_t> EncodeTicket(const Ticket& ticket);

// Total: takes any bytes. INVALID_ARGUMENT for what is no ticket, is
// damaged, or contradicts itself; UNIMPLEMENTED for a newer version.
absl::StatusOr<Ticket> DecodeTicket(absl::Span<const std::uint8_t> bytes);

// OK when a process on this machine, with this driver, may import the ticket's
// memory; FAILED_PRECONDITION says which machine or driver it belongs to.
absl::Status CheckUsableHere(const Ticket& ticket,
                             const platform::Driver& driver);

// Who has it may have what it opens: it stands in the text that the owner hands
// out (Share::ticket()) and nowhere else. Both halves are random.
struct ShareKey {
  std::array<std::uint8_t, 8> place{};  // Finds the share, and proves nothing.
  std::array<std::uint8_t, 16> secret{};  // Compared in constant time.
  friend bool operator==(const ShareKey&, const ShareKey&) = default;
};

// What a share opens, as the text that names it says.
struct ShareInvitation {
  ShareKey key = {};
  Access access = Access::kReadWrite;  // What an importer may map it for.
  std::string address = {};            // Of the endpoint.
  friend bool operator==(const ShareInvitation&,
                         const ShareInvitation&) = default;
};

// A ticket as a string, to be put into a file, an environment variable or a
// message queue. It names the owner's endpoint as well, and holds the key to what
// it names: whoever has it and is an allowed user dials there and receives the
// handles (endpoint.h). Keep it from users who must not have the memory. Form:
// "vmmshare:2:" and URL-safe base64; no white space, no character that a shell
// or a file name minds.
struct AddressedTicket {
  Ticket ticket;
  ShareInvitation invitation;
  friend bool operator==(const AddressedTicket&,
                         const AddressedTicket&) = default;
};

// REQUIRES: the address has 1 to 1024 bytes; access is kRead or kReadWrite.
std::string FormatTicketString(const AddressedTicket& ticket);

// Total: takes any text. White space around the string is dropped, as a
// file or `cat` leaves it there. INVALID_ARGUMENT for text that is no ticket
// or was changed in any character; UNIMPLEMENTED for another version.
absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_TICKET_H_
