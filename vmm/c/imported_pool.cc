#include <memory>
#include <utility>
#include <vector>

#include "platform/base/status_macros.h"
#include "platform/os/run_detached.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/pool.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;

namespace {

absl::StatusOr<std::vector<vmm::PoolTicket>> Decode(const std::uint8_t* bytes,
                                                    std::size_t count) {
  std::vector<vmm::PoolTicket> tickets(count);
  for (vmm::PoolTicket& ticket : tickets) {
    ASSIGN_OR_RETURN(ticket, vmm::DecodePoolTicket(absl::MakeConstSpan(
                                 bytes, VMMSHARE_BLOCK_TICKET_BYTES)));
    bytes += VMMSHARE_BLOCK_TICKET_BYTES;
  }
  return tickets;
}

// Counts what the pool is told.
void Listen(const vmmshare_imported_pool& pool) {
  vmm::ImportedPoolWatch watch;
  watch.recalled = [events = pool.events](auto) {
    const vmm::platform::MutexLock lock(events->mutex);
    ++events->recalls;
    events->changed.NotifyAll();
  };
  watch.disconnected = [events = pool.events](const absl::Status& why) {
    const vmm::platform::MutexLock lock(events->mutex);
    events->ended = why;
    events->changed.NotifyAll();
  };
  pool.pool->Watch(std::move(watch));
}

// Whether the pool would end with this handle, and what it waits for then is no
// work of the GPU's. Who has it alone stays alone: only by a handle is it given on,
// and this one is about to be closed.
bool EndsSoon(const vmmshare_imported_pool& pool) {
  return pool.pool.use_count() == 1 && pool.pool->statistics().releasing == 0;
}

}  // namespace

namespace vmm::c {

void ImportedPoolEnd::operator()(vmm::ImportedPool* pool) const noexcept {
  // In a forked child there is nothing to wait for.
  if (!is_here_ && made_.is_still_here() &&
      platform::RunDetached("vmmshare-free", [pool] { delete pool; })) {
    return;
  }
  // Rather waited for than held, by its owner's book, until this process ends.
  delete pool;
}

}  // namespace vmm::c

vmmshare_status vmmshare_imported_pool_open(
    const vmmshare_driver* driver, const char* text,
    const vmmshare_import_options* options, std::int64_t timeout_ns,
    vmmshare_imported_pool** pool, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(pool, "pool"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(CheckGiven(text, "text"));
    ASSIGN_OR_RETURN(const vmm::ImportOptions import,
                     vmm::c::ImportOptionsOf(options));
    ASSIGN_OR_RETURN(auto opened, vmm::ImportedPool::Subscribe(
                                      driver->driver, text, import,
                                      vmm::c::DeadlineOf(timeout_ns)));
    auto made = std::make_unique<vmmshare_imported_pool>(std::move(opened));
    Listen(*made);
    *pool = made.release();
    return absl::OkStatus();
  });
}

void vmmshare_imported_pool_close(vmmshare_imported_pool* pool) {
  // In a forked child a lock of the pool's may be taken for ever.
  if (pool != nullptr && pool->is_sound() && pool->is_of_this_process() &&
      EndsSoon(*pool)) {
    std::get_deleter<vmm::c::ImportedPoolEnd>(pool->pool)->BeHere();
  }
  vmm::c::Close(pool);
}

vmmshare_status vmmshare_imported_pool_connection(
    const vmmshare_imported_pool* pool, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(pool));
    return pool->pool->connection();
  });
}

vmmshare_status vmmshare_imported_pool_weakness(
    const vmmshare_imported_pool* pool, vmmshare_text** text,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(text, "text"));
    RETURN_IF_ERROR(Check(pool));
    *text = new vmmshare_text{pool->pool->weakness()};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_imported_pool_recalled(
    const vmmshare_imported_pool* pool, std::uint64_t* addresses,
    std::size_t room, std::size_t* count, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(count, "count"));
    RETURN_IF_ERROR(Check(pool));
    if (room != 0) RETURN_IF_ERROR(CheckGiven(addresses, "addresses"));
    const std::vector<vmm::RecalledBlock> recalled = pool->pool->Recalled();
    for (std::size_t i = 0; i < recalled.size() && i < room; ++i) {
      addresses[i] = recalled[i].address;
    }
    *count = recalled.size();
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_imported_pool_wait_recalled(
    const vmmshare_imported_pool* pool, std::uint64_t* seen,
    std::int64_t timeout_ns, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckGiven(seen, "seen"));
    RETURN_IF_ERROR(Check(pool));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    const std::shared_ptr<vmmshare_imported_pool::Events> events = pool->events;
    const vmm::platform::MutexLock lock(events->mutex);
    while (events->recalls <= *seen && events->ended.ok()) {
      if (deadline.Passed()) {
        return absl::DeadlineExceededError(
            "the owner has asked for no block. Wait longer, if it is to.");
      }
      events->changed.WaitFor(events->mutex, deadline.Slice());
    }
    if (events->recalls == *seen) return events->ended;
    *seen = events->recalls;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_imported_pool_import(vmmshare_imported_pool* pool,
                                              const std::uint8_t* tickets,
                                              std::size_t count,
                                              std::int64_t timeout_ns,
                                              vmmshare_block** blocks,
                                              vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (count != 0) RETURN_IF_ERROR(CheckGiven(blocks, "blocks"));
    for (std::size_t i = 0; i < count; ++i) blocks[i] = nullptr;
    RETURN_IF_ERROR(Check(pool));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(CheckGiven(tickets, "tickets"));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    if (count == 1) {  // The usual number, without memory for lists.
      ASSIGN_OR_RETURN(const vmm::PoolTicket ticket,
                       vmm::DecodePoolTicket(absl::MakeConstSpan(
                           tickets, VMMSHARE_BLOCK_TICKET_BYTES)));
      ASSIGN_OR_RETURN(vmm::ImportedBlock block,
                       pool->pool->Import(ticket, deadline));
      blocks[0] = new vmmshare_block(pool->pool, std::move(block));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const std::vector<vmm::PoolTicket> decoded,
                     Decode(tickets, count));
    ASSIGN_OR_RETURN(std::vector<vmm::ImportedBlock> imported,
                     pool->pool->ImportAll(decoded, deadline));
    // All or nothing, also where the host has no memory for a handle.
    std::vector<std::unique_ptr<vmmshare_block>> made;
    made.reserve(count);
    for (vmm::ImportedBlock& each : imported) {
      made.push_back(
          std::make_unique<vmmshare_block>(pool->pool, std::move(each)));
    }
    for (std::size_t i = 0; i < count; ++i) blocks[i] = made[i].release();
    return absl::OkStatus();
  });
}

std::uint64_t vmmshare_block_address(const vmmshare_block* block) {
  return Check(block).ok() ? block->block.address() : 0;
}
std::uint64_t vmmshare_block_size(const vmmshare_block* block) {
  return Check(block).ok() ? block->block.size() : 0;
}

void vmmshare_block_close(vmmshare_block* block) { vmm::c::Close(block); }

vmmshare_status vmmshare_block_close_after(vmmshare_block* block, void* stream,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(block));
    RETURN_IF_ERROR(block->pool->ReleaseAfter(std::move(block->block),
                                              vmm::c::StreamOf(stream)));
    delete block;
    return absl::OkStatus();
  });
}
