// Which block of a pool an address lies in.
#include <gmock/gmock.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/how_many.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class PoolFindTest : public DriverTest {
 protected:
  std::unique_ptr<Pool> Make() {
    PoolOptions options;
    options.first_segment_size = 2 * kMiB;
    options.max_segment_size = 8 * kMiB;
    return Must(Pool::Create(device, options));
  }
};

// The model: what is live, by address.
class Blocks {
 public:
  void Add(CUdeviceptr at, std::uint64_t size) { live_.emplace(at, size); }
  std::pair<CUdeviceptr, std::uint64_t> Take(std::uint64_t which) {
    auto found = live_.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(which % live_.size()));
    const std::pair<CUdeviceptr, std::uint64_t> taken = *found;
    live_.erase(found);
    return taken;
  }
  const std::map<CUdeviceptr, std::uint64_t>& live() const { return live_; }

  void ExpectFound(const Pool& pool, CUdeviceptr inside) const {
    const absl::StatusOr<PoolBlock> found = pool.Find(inside);
    const auto after = live_.upper_bound(inside);
    if (after != live_.begin() &&
        inside - std::prev(after)->first < std::prev(after)->second) {
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->address, std::prev(after)->first);
      EXPECT_EQ(found->size, std::prev(after)->second);
    } else {
      ASSERT_EQ(found.status().code(), absl::StatusCode::kNotFound);
    }
  }

 private:
  std::map<CUdeviceptr, std::uint64_t> live_;
};

TEST_F(PoolFindTest, FindsWhatAModelFinds) {
  const std::unique_ptr<Pool> pool = Make();
  Stream streams[2];
  std::mt19937_64 random(5);
  Blocks model;
  const std::uint64_t count = HowMany("VMMSHARE_MODEL_OPERATIONS", 20'000);
  CUdeviceptr last = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const CUstream stream = streams[random() % 2].get();
    const bool full = model.live().size() >= 200;
    if (model.live().empty() || (!full && random() % 2 == 0)) {
      // From a byte to more than a segment, small ones as often.
      const std::uint64_t size =
          1 + random() % (std::uint64_t{1} << random() % 23);
      last = Must(pool->Allocate(size, stream));
      model.Add(last, size);
    } else {
      const auto [at, size] = model.Take(random());
      last = at + random() % size;
      ASSERT_TRUE(pool->Free(at, stream).ok());
    }
    if (i % 1000 == 0) Must(pool->Trim());
    const std::uint64_t reach = std::uint64_t{1} << random() % 23;
    model.ExpectFound(*pool, last + random() % reach);
    model.ExpectFound(*pool, last - random() % reach);
    model.ExpectFound(*pool, last);
    if (HasFatalFailure()) return;
  }
  for (const auto& [at, size] : model.live()) {
    model.ExpectFound(*pool, at + size - 1);
    ASSERT_TRUE(pool->Free(at, nullptr).ok());
  }
}

TEST_F(PoolFindTest, ExportsTheBlockAroundAnAddressOfAnyPool) {
  const std::unique_ptr<Pool> one = Make();
  const std::unique_ptr<Pool> two = Make();
  const CUdeviceptr first = Must(one->Allocate(5000, nullptr));
  const CUdeviceptr second = Must(two->Allocate(3 * kMiB, nullptr));
  const ExportedBlock found = Must(ExportAround(second + 2 * kMiB));
  EXPECT_EQ(found.block.address, second);
  EXPECT_EQ(found.block.size, 3 * kMiB);
  EXPECT_EQ(found.ticket, Must(two->Export(second)));
  EXPECT_EQ(Must(ExportAround(first + 4999)).ticket, Must(one->Export(first)));
  EXPECT_EQ(ExportAround(first + 5000).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(one->Free(first, nullptr).ok());
  EXPECT_EQ(ExportAround(first).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(two->Free(second, nullptr).ok());
}

}  // namespace
}  // namespace vmm::testing
