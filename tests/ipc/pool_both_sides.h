// Both sides of sharing in one process, for the tests that count calls.
#ifndef VMMSHARE_TESTS_IPC_POOL_BOTH_SIDES_H_
#define VMMSHARE_TESTS_IPC_POOL_BOTH_SIDES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/ipc/pool_ipc_test.h"

namespace vmm::testing {

// A pool of blocks and its importer in one process, so that both sides' calls
// count. Everything is taken beforehand that the path itself does not take.
struct BothSides {
  static constexpr std::size_t kCount = 10'000;
  static constexpr std::uint64_t kBlockSize = 4096;

  explicit BothSides(const platform::Driver& driver,
                     const std::string& directory)
      : pool(Must(Pool::Create(Must(Device::ByOrdinal(driver, 0)), {}))),
        endpoint(
            Must(Endpoint::Start({.listener = {.directory = directory}}))) {
    publication.emplace(Must(endpoint->Serve(*pool)));
    imported = Must(
        ImportedPool::Subscribe(driver, publication->ticket(), {}, Late()));
    for (std::size_t i = 0; i < kCount; ++i) {
      blocks.push_back(Must(pool->Allocate(kBlockSize, nullptr)));
    }
    // The segments have come; nothing else of this first share stays warm.
    Must(imported->Import(Must(pool->Export(blocks.back())), Late()));
    bytes.resize(kCount);
    held.reserve(kCount);
  }

  // From block to bytes, from bytes to address, and back: all of them.
  bool ShareAll() {
    for (std::size_t i = 0; i < kCount; ++i) {
      const absl::StatusOr<PoolTicket> ticket = pool->Export(blocks[i]);
      if (!ticket.ok()) return false;
      bytes[i] = EncodePoolTicket(*ticket);
    }
    for (const PoolTicketBytes& each : bytes) {
      const absl::StatusOr<PoolTicket> ticket = DecodePoolTicket(each);
      if (!ticket.ok()) return false;
      absl::StatusOr<ImportedBlock> block =
          imported->Import(*ticket, absl::InfinitePast());
      if (!block.ok() || block->size() != kBlockSize) return false;
      held.push_back(*std::move(block));
    }
    held.clear();
    return true;
  }
  bool FreeAll() {
    for (CUdeviceptr block : blocks) {
      if (!pool->Free(block, nullptr).ok()) return false;
    }
    return true;
  }
  bool TakeAll() {
    for (CUdeviceptr& block : blocks) {
      const absl::StatusOr<CUdeviceptr> taken =
          pool->Allocate(kBlockSize, nullptr);
      if (!taken.ok()) return false;
      block = *taken;
    }
    return true;
  }

  std::unique_ptr<Pool> pool;
  std::unique_ptr<Endpoint> endpoint;
  std::optional<Share> publication;
  std::unique_ptr<ImportedPool> imported;
  std::vector<CUdeviceptr> blocks;
  std::vector<PoolTicketBytes> bytes;
  std::vector<ImportedBlock> held;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_POOL_BOTH_SIDES_H_
