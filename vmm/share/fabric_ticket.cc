#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/transfer.h"

namespace vmm {
namespace {

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable fabric ticket: ", what,
      ". Expected the whole bytes that ExportFabricTicket() returned."));
}

}  // namespace

absl::StatusOr<FabricTicket> MakeFabricTicket(const Shareable& memory) {
  FabricTicket made;
  ASSIGN_OR_RETURN(made.ticket, MakeTicket(memory, HandleKind::kFabric));
  const std::size_t chunks = made.ticket.layout.count();
  made.handles.reserve(chunks);
  for (std::size_t i = 0; i < chunks; ++i) {
    ASSIGN_OR_RETURN(const ExportedHandle handle,
                     ExportChunk(memory, HandleKind::kFabric, i));
    made.handles.push_back(std::get<fabric::Handle>(handle));
  }
  return made;
}

std::vector<std::uint8_t> EncodeFabricTicket(const FabricTicket& ticket) {
  platform::Check(ticket.ticket.kind == HandleKind::kFabric &&
                      ticket.handles.size() == ticket.ticket.layout.count(),
                  "a fabric ticket needs the kind kFabric and one handle for "
                  "every chunk");
  std::vector<std::uint8_t> bytes = EncodeTicket(ticket.ticket);
  bytes.reserve(FabricTicketBytes(ticket.handles.size()));
  WireWriter out(bytes);
  for (const fabric::Handle& handle : ticket.handles) {
    out.PutBytes(handle.bytes);
  }
  out.Put<std::uint32_t>(Crc32c(bytes));
  return bytes;
}

absl::StatusOr<FabricTicket> DecodeFabricTicket(
    absl::Span<const std::uint8_t> bytes) {
  if (bytes.size() < kTicketBytes) {
    return Malformed(absl::StrCat(bytes.size(), " bytes; a ticket alone has ",
                                  kTicketBytes));
  }
  FabricTicket decoded;
  ASSIGN_OR_RETURN(decoded.ticket, DecodeTicket(bytes.first(kTicketBytes)));
  if (decoded.ticket.kind != HandleKind::kFabric) {
    return Malformed(absl::StrCat("it is of memory shared as ",
                                  NameOf(decoded.ticket.kind)));
  }
  const std::size_t chunks = decoded.ticket.layout.count();
  if (bytes.size() != FabricTicketBytes(chunks)) {
    return Malformed(absl::StrCat(bytes.size(), " bytes for ", chunks,
                                  " chunks; expected ",
                                  FabricTicketBytes(chunks)));
  }
  if (const TrailingCrc32c crc(bytes); !crc.is_right()) {
    return Malformed(absl::StrCat("checksum 0x", absl::Hex(crc.stated),
                                  "; expected 0x", absl::Hex(crc.actual)));
  }
  WireReader reader(bytes.subspan(kTicketBytes));
  decoded.handles.resize(chunks);
  for (fabric::Handle& handle : decoded.handles) {
    reader.TakeBytes(absl::MakeSpan(handle.bytes));
  }
  return decoded;
}

absl::StatusOr<std::vector<std::uint8_t>> ExportFabricTicket(
    const Shareable& memory) {
  ASSIGN_OR_RETURN(const FabricTicket ticket, MakeFabricTicket(memory));
  return EncodeFabricTicket(ticket);
}

absl::StatusOr<ImportedAllocation> ImportFabricTicket(
    const platform::Driver& driver, absl::Span<const std::uint8_t> bytes,
    const ImportOptions& options) {
  ASSIGN_OR_RETURN(const FabricTicket ticket, DecodeFabricTicket(bytes));
  return ImportFabricTicket(driver, ticket, options);
}

absl::StatusOr<ImportedAllocation> ImportFabricTicket(
    const platform::Driver& driver, const FabricTicket& ticket,
    const ImportOptions& options) {
  std::vector<ExportedHandle> handles(ticket.handles.begin(),
                                      ticket.handles.end());
  return ImportedAllocation::Open(driver, ticket.ticket, handles, options);
}

}  // namespace vmm
