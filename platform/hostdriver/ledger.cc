// The functions that only this driver has.
#include <cstring>

#include "platform/hostdriver/failures.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {
namespace {

VmmshareHostLedger Count(const State& state) {
  VmmshareHostLedger ledger{};
  for (const auto& [handle, memory] : state.memories) {
    ledger.references += static_cast<std::uint64_t>(memory->references);
    if (!memory->imported) ledger.bytes += memory->size;
    if (memory->references == 0) continue;
    ++ledger.handles;
    if (memory->imported) ++ledger.imported_handles;
  }
  ledger.mappings = state.mappings.size();
  ledger.reservations = state.reservations.size();
  ledger.streams = state.streams.size();
  ledger.events = state.events.size();
  for (const auto& [device, primary] : state.primaries) {
    ledger.contexts += static_cast<std::uint64_t>(primary.retains);
  }
  for (const auto& [id, context] : state.contexts) {
    if (!context->primary) ++ledger.contexts;
  }
  for (const auto& [address, block] : state.blocks) {
    if (block.pool != nullptr) {
      ++ledger.pool_blocks;
    } else if (block.opens != 0) {
      ledger.legacy_opens += static_cast<std::uint64_t>(block.opens);
    } else {
      ++(block.on_host ? ledger.host_blocks : ledger.device_blocks);
    }
  }
  ledger.pools = state.pools.size() - state.default_pools.size();
  return ledger;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

int vmmshareHostDriverVersion() { return 1; }

int vmmshareHostLedger(VmmshareHostLedger* ledger, std::size_t size) {
  if (ledger == nullptr || size > sizeof(VmmshareHostLedger)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  const VmmshareHostLedger now = Count(state);
  std::memcpy(ledger, &now, size);
  return CUDA_SUCCESS;
}

int vmmshareHostFail(const char* rules) {
  return Failures::Get().Set(rules == nullptr ? "" : rules)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

std::uint64_t vmmshareHostCalls(const char* name) {
  return name == nullptr ? 0 : Failures::Get().Calls(name);
}
