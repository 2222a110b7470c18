// docs/pool.md, docs/tickets.md, docs/leases.md, docs/ordering.md and
// docs/pipeline.md.
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "tests/docs/page_test.h"
#include "vmm/queue/ring.h"
#include "vmm/vmm.h"

namespace vmm::testing {
namespace {

using platform::Channel;

TEST_F(PageTest, APoolSharesABlockByItsTicket) {
  const absl::Time deadline = Late();
  const platform::Driver* const driver = driver_;
  const Device& device = device_;
  const Stream here;
  const Stream there;
  std::string text;
  PoolTicketBytes bytes{};
  const auto import = [&] {
    CUstream stream = there.get();
    const auto use = [&](CUdeviceptr, std::uint64_t size) {
      EXPECT_EQ(size, 64 << 10);
    };
#include <pool.importer.inc>
    Check(given);
    there.Sync();
  };
  CUstream stream = here.get();
  const Endpoint* serving = nullptr;
  const auto send = [&](const PoolTicketBytes& ticket) { bytes = ticket; };
#include <pool.owner.inc>
  // Freed when it was sent: a ticket of another block is what a peer opens.
  Check(freed);
  block = (*pool)->Allocate(64 << 10, stream);
  bytes = EncodePoolTicket(Must((*pool)->Export(*block)));
  text = served->ticket();
  import();
}

TEST_F(PageTest, ATicketIsPlainBytes) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device_, {}));
  const CUdeviceptr block = Must(pool->Allocate(4096, nullptr));
#include <tickets.bytes.inc>
  EXPECT_EQ(message.size(), 56);
  Check(received.status());
  EXPECT_EQ(*received, *ticket);
}

TEST_F(PageTest, LeasesAreSeenAndAskedBack) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device_, {}));
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  const Share served = Must(endpoint->Serve(*pool));
  const CUdeviceptr block = Must(pool->Allocate(4096, nullptr));
  const std::unique_ptr<ImportedPool> imported =
      Must(ImportedPool::Subscribe(*driver_, served.ticket(), {}, Late()));
  std::vector<ImportedBlock> held;
  held.push_back(Must(imported->Import(Must(pool->Export(block)), Late())));
  const auto drop = [&](CUdeviceptr address) {
    EXPECT_EQ(address, held.front().address());
    held.clear();
  };
#include <leases.importer.inc>
#include <leases.owner.inc>
  Check(asked);
  Check(back);
  imported->Watch({});
  EXPECT_TRUE(held.empty());
}

TEST_F(PageTest, AFenceOrdersTwoStreams) {
  const platform::Driver& driver = *driver_;
  const Allocation memory =
      Must(Allocation::Create(device_, {.size = 1 << 20}));
  const std::unique_ptr<FencePool> fences = Must(FencePool::Create(device_));
  Fence fence = Must(fences->New());
  const std::size_t size = 4096;
  const CUdeviceptr source = memory.address();
  const CUdeviceptr buffer = source + size;
  const CUdeviceptr target = buffer + size;
  std::uint64_t frame = 0;
  const Stream here;
  const Stream there;
  {
    CUstream stream = here.get();
    EXPECT_EQ(driver->cuMemsetD8Async(source, 7, size, stream), CUDA_SUCCESS);
#include <ordering.producer.inc>
    Check(sent);
  }
  {
    CUstream stream = there.get();
#include <ordering.consumer.inc>
    Check(ordered);
    there.Sync();
  }
  std::uint8_t byte = 0;
  EXPECT_EQ(driver->cuMemcpyDtoH(&byte, target, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
}

absl::Status Produce(const platform::Driver& driver, const Device& device,
                     absl::StatusOr<Channel> channel, CUstream stream) {
  const absl::Time deadline = Late();
  const int frames = 20;
#include <pipeline.producer.inc>
}

absl::Status Consume(const platform::Driver& driver, const Device& device,
                     absl::StatusOr<Channel> channel, CUstream stream,
                     CUdeviceptr target) {
  const absl::Time deadline = Late();
#include <pipeline.consumer.inc>
}

TEST_F(PageTest, APipelineBringsItsFrames) {
  const platform::Driver& driver = *driver_;
  const Allocation memory =
      Must(Allocation::Create(device_, {.size = 16 << 20}));
  auto [one, other] = Must(Channel::Pair());
  const Stream here;
  const Stream there;
  absl::Status consumed = absl::UnknownError("not run");
  std::thread consumer([&, channel = std::move(other)]() mutable {
    const PrimaryContext context = Must(PrimaryContext::Retain(device_));
    const CurrentContext current = Must(context.MakeCurrent());
    consumed = Consume(driver, device_, std::move(channel), there.get(),
                       memory.address());
  });
  Check(Produce(driver, device_, std::move(one), here.get()));
  consumer.join();
  Check(consumed);
  std::uint8_t byte = 0;
  EXPECT_EQ(driver->cuMemcpyDtoH(&byte, memory.address(), 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 19);  // Of the last frame.
}

}  // namespace
}  // namespace vmm::testing
