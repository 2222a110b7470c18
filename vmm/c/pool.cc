#include "vmm/c/pool.h"

#include <cstring>
#include <vector>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;
using vmm::c::StreamOf;

vmmshare_status vmmshare_pool_create(const vmmshare_device* device,
                                     const vmmshare_pool_options* options,
                                     vmmshare_pool** pool,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(pool, "pool"));
    RETURN_IF_ERROR(Check(device));
    ASSIGN_OR_RETURN(const vmm::PoolOptions given,
                     vmm::c::PoolOptionsOf(options));
    return Make(pool, vmm::Pool::Create(device->device, given));
  });
}

void vmmshare_pool_close(vmmshare_pool* pool) { vmm::c::Close(pool); }

vmmshare_status vmmshare_pool_allocate(vmmshare_pool* pool, std::uint64_t size,
                                       std::uint64_t alignment, void* stream,
                                       std::uint64_t* address,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(address, "address"));
    RETURN_IF_ERROR(Check(pool));
    ASSIGN_OR_RETURN(
        *address,
        pool->pool->Allocate(size, StreamOf(stream),
                             {.alignment = alignment == 0 ? 256 : alignment}));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_free(vmmshare_pool* pool, std::uint64_t address,
                                   void* stream, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    return pool->pool->Free(address, StreamOf(stream));
  });
}

vmmshare_status vmmshare_pool_tickets(vmmshare_pool* pool,
                                      const std::uint64_t* addresses,
                                      std::size_t count, std::uint8_t* tickets,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    static_assert(VMMSHARE_BLOCK_TICKET_BYTES == vmm::kPoolTicketBytes);
    if (count != 0) {
      RETURN_IF_ERROR(CheckGiven(tickets, "tickets"));
      std::memset(tickets, 0, count * VMMSHARE_BLOCK_TICKET_BYTES);
    }
    RETURN_IF_ERROR(Check(pool));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(CheckGiven(addresses, "addresses"));
    if (count == 1) {  // The usual number, without memory for a list.
      ASSIGN_OR_RETURN(const vmm::PoolTicket ticket,
                       pool->pool->Export(addresses[0]));
      const vmm::PoolTicketBytes bytes = vmm::EncodePoolTicket(ticket);
      std::memcpy(tickets, bytes.data(), bytes.size());
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const std::vector<vmm::PoolTicket> exported,
                     pool->pool->ExportAll(vmm::c::Pointers(addresses, count)));
    for (const vmm::PoolTicket& ticket : exported) {
      const vmm::PoolTicketBytes bytes = vmm::EncodePoolTicket(ticket);
      std::memcpy(tickets, bytes.data(), bytes.size());
      tickets += bytes.size();
    }
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_find(const vmmshare_pool* pool,
                                   std::uint64_t inside, std::uint64_t* base,
                                   std::uint64_t* size,
                                   vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    absl::Status given = Clear(base, "base");
    given.Update(Clear(size, "size"));
    RETURN_IF_ERROR(given);
    RETURN_IF_ERROR(Check(pool));
    ASSIGN_OR_RETURN(const vmm::PoolBlock block, pool->pool->Find(inside));
    *base = block.address;
    *size = block.size;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_weakness(const vmmshare_pool* pool,
                                       vmmshare_text** text,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(text, "text"));
    RETURN_IF_ERROR(Check(pool));
    *text = new vmmshare_text{pool->pool->weakness()};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_get_statistics(
    const vmmshare_pool* pool, vmmshare_pool_statistics* statistics,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(vmm::c::CheckResult(
        statistics, 88, "vmmshare_pool_statistics", "statistics"));
    RETURN_IF_ERROR(Check(pool));
    const vmm::PoolStatistics now = pool->pool->statistics();
    vmmshare_pool_statistics out{};
    out.reserved = now.reserved;
    out.live = now.live;
    out.requested = now.requested;
    out.held = now.held;
    out.free = now.free;
    out.live_blocks = now.live_blocks;
    out.tickets = now.tickets;
    out.peers = now.peers;
    out.allocations = now.allocations;
    out.frees = now.frees;
    vmm::c::WriteResult(out, statistics);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_trim(vmmshare_pool* pool,
                                   std::uint64_t keep_bytes,
                                   std::uint64_t* freed,
                                   vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (freed != nullptr) *freed = 0;
    RETURN_IF_ERROR(Check(pool));
    ASSIGN_OR_RETURN(const std::uint64_t bytes, pool->pool->Trim(keep_bytes));
    if (freed != nullptr) *freed = bytes;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_pool_release_stream(vmmshare_pool* pool, void* stream,
                                             std::int64_t timeout_ns,
                                             vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    return pool->pool->ReleaseStream(StreamOf(stream),
                                     vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_pool_order(vmmshare_pool* pool, void* first,
                                    void* then, std::int64_t timeout_ns,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    return pool->pool->Order(StreamOf(first), StreamOf(then),
                             vmm::c::DeadlineOf(timeout_ns));
  });
}
