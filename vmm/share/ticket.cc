#include "vmm/share/ticket.h"

#include <algorithm>
#include <bit>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/wire.h"

namespace vmm {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'V', 'M', 'M', 'S',
                                                'H', 'A', 'R', 'E'};
constexpr std::size_t kHostNameBytes = 64;
constexpr std::size_t kReservedBytes = 12;
constexpr std::uint8_t kOnDevice = CU_MEM_LOCATION_TYPE_DEVICE;
constexpr std::uint8_t kOnHostNuma = CU_MEM_LOCATION_TYPE_HOST_NUMA;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable ticket: ", what,
      ". It was damaged, cut, or not made by vmmshare; send it again."));
}

// Fits the field, and prints as it is read.
std::string PrintableHostName(absl::string_view name) {
  std::string kept(name.substr(0, kHostNameBytes - 1));
  for (char& c : kept) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) c = '?';
  }
  return kept;
}

absl::Status CheckLayout(const ChunkLayout& layout, std::uint32_t chunk_count,
                         std::uint64_t requested_size) {
  if (layout.size == 0 || layout.chunk_size == 0 ||
      layout.chunk_size > layout.size) {
    return Malformed(absl::StrCat("size ", layout.size, " and chunk size ",
                                  layout.chunk_size,
                                  "; expected 0 < chunk size <= size"));
  }
  // Written so that no value of the two sizes overflows.
  const std::uint64_t chunks = (layout.size - 1) / layout.chunk_size + 1;
  if (chunks != chunk_count || chunks > kMaxChunks) {
    return Malformed(absl::StrCat(
        chunk_count, " chunks for ", layout.size, " bytes in chunks of ",
        layout.chunk_size, "; expected ", chunks, ", at most ", kMaxChunks));
  }
  if (requested_size == 0 || requested_size > layout.size) {
    return Malformed(absl::StrCat(
        requested_size, " bytes asked for; expected 1 to ", layout.size));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadHostName(WireReader& reader) {
  std::array<std::uint8_t, kHostNameBytes> field{};
  reader.TakeBytes(absl::MakeSpan(field));
  const auto end = std::find(field.begin(), field.end(), 0);
  const bool clean =
      end != field.end() &&
      std::all_of(field.begin(), end,
                  [](std::uint8_t c) { return absl::ascii_isgraph(c); }) &&
      std::all_of(end, field.end(), [](std::uint8_t c) { return c == 0; });
  if (!clean) return Malformed("the host name is not printable text");
  return std::string(field.begin(), end);
}

bool IsKnown(std::uint8_t kind) {
  return std::has_single_bit(kind) &&
         HandleKindSet::FromBits(kind).bits() == kind;
}

// The fields after magic, version and length, whose checksum is right.
absl::StatusOr<Ticket> DecodeBody(WireReader& reader) {
  Ticket ticket;
  const auto kind = reader.Take<std::uint8_t>();
  const auto where = reader.Take<std::uint8_t>();
  const auto driver = reader.Take<std::uint8_t>();
  const auto flags = reader.Take<std::uint8_t>();
  if (!IsKnown(kind)) return Malformed(absl::StrCat("handle kind ", kind));
  if (where != kOnDevice && where != kOnHostNuma) {
    return Malformed(absl::StrCat("location type ", where));
  }
  if (driver > 1) return Malformed(absl::StrCat("driver ", driver));
  if (flags > 1) return Malformed(absl::StrCat("flags ", flags));
  ticket.rdma_capable = flags == 1;
  ticket.kind = static_cast<HandleKind>(kind);
  ticket.host_memory_driver = driver == 1;
  ticket.layout.size = reader.Take<std::uint64_t>();
  ticket.layout.chunk_size = reader.Take<std::uint64_t>();
  const auto chunk_count = reader.Take<std::uint32_t>();
  ticket.id.generation = reader.Take<std::uint32_t>();
  reader.TakeBytes(absl::MakeSpan(ticket.id.owner.bytes));
  ticket.id.number = reader.Take<std::uint64_t>();
  reader.TakeBytes(absl::MakeSpan(ticket.device.bytes));
  reader.TakeBytes(absl::MakeSpan(ticket.boot_id));
  const auto node = reader.Take<std::uint32_t>();
  if (where == kOnHostNuma) {
    ticket.host_numa_node = node;
  } else if (node != 0) {
    return Malformed(absl::StrCat("NUMA node ", node, " for device memory"));
  }
  if (!reader.TakeZeros(4)) return Malformed("reserved bytes are not zero");
  ticket.requested_size = reader.Take<std::uint64_t>();
  ASSIGN_OR_RETURN(ticket.host_name, ReadHostName(reader));
  if (!reader.TakeZeros(kReservedBytes)) {
    return Malformed("reserved bytes are not zero");
  }
  RETURN_IF_ERROR(
      CheckLayout(ticket.layout, chunk_count, ticket.requested_size));
  if (!IsVmm(ticket.kind) && (chunk_count != 1 || where != kOnDevice)) {
    return Malformed(absl::StrCat("a ", NameOf(ticket.kind), " of ",
                                  chunk_count, " chunks at location type ",
                                  where, "; expected one, of a device"));
  }
  return ticket;
}

}  // namespace

std::string Ticket::Describe() const {
  return absl::StrCat(
      layout.size, " bytes of ",
      host_numa_node.has_value()
          ? absl::StrCat("host NUMA node ", *host_numa_node)
          : device.ToString(),
      host_name.empty()
          ? absl::StrCat(", given as ", NameOf(kind))
          : absl::StrCat(", shared as ", NameOf(kind), " by host ", host_name,
                         " (", id.ToString(), ")"));
}

absl::StatusOr<Ticket> MakeTicket(const Shareable& memory, HandleKind kind) {
  RETURN_IF_ERROR(CheckHasKind(memory, kind));
  ASSIGN_OR_RETURN(const platform::Machine* machine, platform::ThisMachine());
  Ticket ticket;
  ticket.kind = kind;
  ticket.host_memory_driver = memory.device().driver().is_host_memory();
  ticket.rdma_capable =
      memory.memory() != nullptr && memory.memory()->made_for_rdma();
  ticket.layout = memory.layout();
  ticket.requested_size = memory.requested_size();
  ticket.id = memory.id();
  ticket.device = memory.device().uuid();
  if (memory.where().is_host()) {
    ticket.host_numa_node =
        static_cast<std::uint32_t>(memory.where().numa_node());
  }
  ticket.boot_id = machine->boot_id;
  ticket.host_name = PrintableHostName(machine->host_name);
  if (ticket.layout.count() > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the memory has ", ticket.layout.count(), " chunks; at most ",
        kMaxChunks,
        " can be shared. Raise AllocationOptions::max_chunk_size."));
  }
  return ticket;
}

std::vector<std::uint8_t> EncodeTicket(const Ticket& ticket) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(kTicketBytes);
  WireWriter out(bytes);
  out.PutBytes(kMagic);
  out.Put<std::uint16_t>(kTicketVersion);
  out.Put<std::uint16_t>(kTicketBytes);
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(ticket.kind));
  out.Put<std::uint8_t>(ticket.host_numa_node ? kOnHostNuma : kOnDevice);
  out.Put<std::uint8_t>(ticket.host_memory_driver ? 1 : 0);
  out.Put<std::uint8_t>(ticket.rdma_capable ? 1 : 0);
  out.Put<std::uint64_t>(ticket.layout.size);
  out.Put<std::uint64_t>(ticket.layout.chunk_size);
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(ticket.layout.count()));
  out.Put<std::uint32_t>(ticket.id.generation);
  out.PutBytes(ticket.id.owner.bytes);
  out.Put<std::uint64_t>(ticket.id.number);
  out.PutBytes(ticket.device.bytes);
  out.PutBytes(ticket.boot_id);
  out.Put<std::uint32_t>(ticket.host_numa_node.value_or(0));
  out.PutZeros(4);
  out.Put<std::uint64_t>(ticket.requested_size);
  out.PutText(PrintableHostName(ticket.host_name), kHostNameBytes);
  out.PutZeros(kReservedBytes);
  out.Put<std::uint32_t>(Crc32c(bytes));
  return bytes;
}

absl::StatusOr<Ticket> DecodeTicket(absl::Span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  std::array<std::uint8_t, kMagic.size()> magic{};
  reader.TakeBytes(absl::MakeSpan(magic));
  const auto version = reader.Take<std::uint16_t>();
  const auto length = reader.Take<std::uint16_t>();
  if (reader.overrun() || magic != kMagic) {
    return Malformed("it does not begin with the ticket's mark");
  }
  // Before anything else of it is read: only these two fields keep their
  // meaning in every version.
  if (version > kTicketVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "the ticket has format version ", version, "; this vmmshare reads ",
        kTicketVersion, ". Use the same or a newer release in the importer."));
  }
  if (version != kTicketVersion || length != kTicketBytes ||
      bytes.size() != kTicketBytes) {
    return Malformed(
        absl::StrCat("version ", version, ", stated length ", length, ", ",
                     bytes.size(), " bytes given; expected version ",
                     kTicketVersion, " and ", kTicketBytes, " bytes"));
  }
  if (const TrailingCrc32c crc(bytes); !crc.is_right()) {
    return Malformed(absl::StrCat("checksum 0x", absl::Hex(crc.stated),
                                  "; expected 0x", absl::Hex(crc.actual)));
  }
  return DecodeBody(reader);
}

absl::Status CheckUsableHere(const Ticket& ticket,
                             const platform::Driver& driver) {
  if (ticket.host_memory_driver != driver.is_host_memory()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ticket belongs to ",
        ticket.host_memory_driver ? "the host-memory driver" : "a CUDA driver",
        "; this process uses ", driver.Describe()));
  }
  if (ticket.kind == HandleKind::kFabric) return absl::OkStatus();
  ASSIGN_OR_RETURN(const platform::Machine* machine, platform::ThisMachine());
  if (machine->boot_id != ticket.boot_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ticket was made on host ", ticket.host_name,
        ", on another machine or before a restart; this is ",
        machine->host_name, ". Memory shared as ", NameOf(ticket.kind),
        " stays on one machine: across nodes share fabric handles. If it is "
        "one machine, a container was given a boot id of its own "
        "(systemd-nspawn does that): see docs/containers.md."));
  }
  return absl::OkStatus();
}

}  // namespace vmm
