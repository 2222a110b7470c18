#include "vmm/share/raw_handle.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/ticket.h"

namespace vmm {
namespace {

absl::StatusOr<ChunkLayout> LayoutOf(const std::vector<RawHandle>& chunks) {
  if (chunks.empty() || chunks.size() > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        chunks.size(), " handles to import; expected 1 to ", kMaxChunks));
  }
  ChunkLayout layout{.size = 0, .chunk_size = chunks.front().size};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const RawHandle& chunk = chunks[i];
    const bool last = i + 1 == chunks.size();
    if (chunk.kind != chunks.front().kind) {
      return absl::InvalidArgumentError(absl::StrCat(
          "handle ", i, " is a ", NameOf(chunk.kind), " and the first one a ",
          NameOf(chunks.front().kind), ". Import them one by one."));
    }
    if (chunk.size == 0 || chunk.size > layout.chunk_size ||
        (!last && chunk.size != layout.chunk_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", i, " has ", chunk.size,
                       " bytes and the first one ", layout.chunk_size,
                       "; expected as many, or fewer for the last, and not 0"));
    }
    if (chunk.size > std::numeric_limits<std::uint64_t>::max() - layout.size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the sizes of ", chunks.size(), " chunks overflow"));
    }
    layout.size += chunk.size;
  }
  return layout;
}

}  // namespace

absl::StatusOr<RawHandle> ExportRaw(const Shareable& memory, std::size_t chunk,
                                    HandleKind kind) {
  const ChunkLayout layout = memory.layout();
  if (chunk >= layout.count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, " of memory that has ", layout.count()));
  }
  ASSIGN_OR_RETURN(ExportedHandle handle, ExportChunk(memory, kind, chunk));
  return RawHandle{kind, layout.SizeOf(chunk), std::move(handle)};
}

absl::StatusOr<ImportedAllocation> ImportRaw(const Device& device,
                                             const Location& where,
                                             std::vector<RawHandle> chunks,
                                             const ImportOptions& options) {
  if (where.is_host() && where.numa_node() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ", chunks.size(), " handles on host NUMA node ",
                     where.numa_node(),
                     "; expected 0 or more. Give the node that it is on."));
  }
  ASSIGN_OR_RETURN(const ChunkLayout layout, LayoutOf(chunks));
  ASSIGN_OR_RETURN(const platform::Machine* machine, platform::ThisMachine());
  // What a ticket would say: nobody else has said anything of this memory.
  Ticket ticket;
  ticket.kind = chunks.front().kind;
  ticket.host_memory_driver = device.driver().is_host_memory();
  ticket.layout = layout;
  ticket.requested_size = layout.size;
  ASSIGN_OR_RETURN(ticket.id, NewMemoryId());
  ticket.device = device.uuid();
  if (where.is_host()) {
    ticket.host_numa_node = static_cast<std::uint32_t>(where.numa_node());
  } else {
    ticket.device = where.device().uuid();
  }
  ticket.boot_id = machine->boot_id;
  // Whoever made it: the name stays empty.

  ImportOptions import = options;
  if (import.grants.empty()) {
    import.grants.push_back({Location::On(device), options.access});
  }
  std::vector<ExportedHandle> handles;
  handles.reserve(chunks.size());
  for (RawHandle& chunk : chunks) handles.push_back(std::move(chunk.handle));
  return ImportedAllocation::Open(device.driver(), ticket, handles, import);
}

}  // namespace vmm
