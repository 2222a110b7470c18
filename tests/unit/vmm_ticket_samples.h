// Tickets for tests, and tools to spoil them.
#ifndef VMMSHARE_TESTS_UNIT_VMM_TICKET_SAMPLES_H_
#define VMMSHARE_TESTS_UNIT_VMM_TICKET_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "vmm/memory/internal/wire.h"
#include "vmm/share/ticket.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {

// Two chunks of a device's memory; every field has another value.
inline Ticket SampleTicket() {
  Ticket ticket;
  ticket.kind = HandleKind::kPosixFd;
  ticket.host_memory_driver = true;
  ticket.layout = {6 << 20, 4 << 20};
  ticket.requested_size = 0x5ffff1;
  std::iota(ticket.id.owner.bytes.begin(), ticket.id.owner.bytes.end(), 0x00);
  ticket.id.number = 0x1122334455667788;
  ticket.id.generation = 7;
  std::iota(ticket.device.bytes.begin(), ticket.device.bytes.end(), 0x10);
  std::iota(ticket.boot_id.begin(), ticket.boot_id.end(), 0x20);
  ticket.host_name = "gpu-host.example";
  return ticket;
}

// `chunks` chunks of 2 MiB.
inline Ticket TicketOfChunks(std::size_t chunks,
                             HandleKind kind = HandleKind::kPosixFd) {
  Ticket ticket = SampleTicket();
  ticket.kind = kind;
  ticket.layout = {chunks << 21, 2 << 20};
  ticket.requested_size = ticket.layout.size;
  return ticket;
}

// Of so many chunks; every byte of the handles has another value than its
// neighbours.
inline FabricTicket SampleFabricTicket(std::size_t chunks) {
  FabricTicket ticket{TicketOfChunks(chunks, HandleKind::kFabric), {}};
  ticket.handles.resize(chunks);
  for (std::size_t i = 0; i < chunks; ++i) {
    std::iota(ticket.handles[i].bytes.begin(), ticket.handles[i].bytes.end(),
              static_cast<std::uint8_t>(i));
  }
  return ticket;
}

// Puts a right checksum at the end of what was spoilt on purpose.
inline void RepairChecksum(std::vector<std::uint8_t>& ticket) {
  ticket.resize(ticket.size() - 4);
  const std::uint32_t crc = Crc32c(ticket);
  WireWriter(ticket).Put<std::uint32_t>(crc);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_VMM_TICKET_SAMPLES_H_
