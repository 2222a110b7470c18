// The share table asks for its memory when it is made, and not on the path of a
// block.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/support/must.h"
#include "vmm/pool/internal/share_table.h"

namespace {
std::atomic<std::size_t> asked_for = 0;  // How often memory was.
}  // namespace

void* operator new(std::size_t size) {
  ++asked_for;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++asked_for;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vmm::pool {
namespace {

TEST(ShareTableMemory, IsAllThereBeforeTheFirstBlock) {
  std::size_t before = asked_for;
  ShareTable table = testing::Must(ShareTable::Create({}));
  EXPECT_GT(asked_for, before) << "the count works";
  constexpr std::uint32_t kBlocks = 10000;
  before = asked_for;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    testing::Must(table.Publish(1, i, 1));
  }
  for (std::uint32_t slot = 0; slot < kBlocks; ++slot) {
    table.Withdraw(slot);
    table.Recycle(slot);
  }
  EXPECT_EQ(asked_for, before);
}

}  // namespace
}  // namespace vmm::pool
