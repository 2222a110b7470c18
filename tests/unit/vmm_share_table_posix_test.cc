// The share table and a view of it in a process that has no descriptor left.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/must.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::pool {
namespace {

using testing::DescriptorLimit;
using testing::Must;

TEST(ShareTableWithoutDescriptors, IsNotMadeAndGetsNoPeer) {
  ShareTable table = Must(ShareTable::Create({}));
  std::optional<DescriptorLimit> limit(0);
  const absl::Status no_table = ShareTable::Create({}).status();
  const absl::Status no_peer = table.AddPeer().status();
  limit.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(no_table)) << no_table;
  EXPECT_TRUE(absl::IsResourceExhausted(no_peer)) << no_peer;
  const PeerId peer = Must(table.AddPeer());
  EXPECT_EQ(table.HoldsOf(peer), 0u);
}

}  // namespace
}  // namespace vmm::pool
