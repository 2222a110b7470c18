// A ring between two processes, with items on their way.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "tests/support/steps.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint32_t kBuffers = 2;
constexpr std::uint64_t kItems = 5;
// The host may be two laps ahead, so that all items are on their way at once.
constexpr absl::Duration kPatience = absl::Seconds(5);

unsigned WordOf(std::uint64_t number) {
  return static_cast<unsigned>(number * 2654435761u);
}

absl::Status PutAll(Party& me, RingWriter& ring, const Stream& stream) {
  for (std::uint64_t item = 1; item <= kItems; ++item) {
    absl::StatusOr<RingBuffer> buffer =
        me.Try("RingWriter::Acquire", Again::kYes, [&](absl::Time deadline) {
          return ring.Acquire(stream.get(), deadline);
        });
    if (!buffer.ok()) return buffer.status();
    MarkStep("before it fills");
    EXPECT_EQ(TestDriver()->cuMemsetD32Async(buffer->address, WordOf(item),
                                             buffer->size / 4, stream.get()),
              CUDA_SUCCESS);
    const absl::Status published =
        me.Try("RingWriter::Publish", Again::kNo, [&](absl::Time deadline) {
          return ring.Publish(*buffer, stream.get(), deadline);
        });
    if (!published.ok()) return published;
    MarkStep("after it published");
  }
  return me.Try("RingWriter::Finish", Again::kYes,
                [&](absl::Time deadline) { return ring.Finish(deadline); });
}

absl::Status TakeAll(Party& me, RingReader& ring, const Stream& stream) {
  std::vector<std::uint32_t> words(kBytes / 4);
  for (;;) {
    absl::StatusOr<RingBuffer> buffer =
        me.Try("RingReader::Acquire", Again::kYes, [&](absl::Time deadline) {
          return ring.Acquire(stream.get(), deadline);
        });
    if (absl::IsOutOfRange(buffer.status())) break;
    if (!buffer.ok()) return buffer.status();
    absl::Status there = me.Try(
        "RingReader::Await", Again::kYes,
        [&](absl::Time deadline) { return ring.Await(*buffer, deadline); });
    if (there.ok()) {
      EXPECT_EQ(TestDriver()->cuMemcpyDtoH(words.data(), buffer->address,
                                           buffer->size),
                CUDA_SUCCESS);
      EXPECT_TRUE(words == std::vector<std::uint32_t>(kBytes / 4,
                                                      WordOf(buffer->number)))
          << "item " << buffer->number;
    }
    MarkStep("before it releases");
    const absl::Status released = ring.Release(*buffer, stream.get());
    EXPECT_TRUE(released.ok()) << released;
    MarkStep("after it released");
    if (!there.ok()) return there;
  }
  return me.Try("RingReader::Finish", Again::kYes,
                [&](absl::Time deadline) { return ring.Finish(deadline); });
}

}  // namespace

absl::Status WriteRing(Party& me) {
  RingHomeOptions where;
  where.endpoint.listener.directory = me.directory();
  const std::unique_ptr<RingHome> home =
      Must(RingHome::Create(me.device(), where));
  absl::Status done;
  {
    const Stream stream;
    absl::StatusOr<std::unique_ptr<RingWriter>> ring =
        me.Try("RingWriter::Open", Again::kNo, [&](absl::Time deadline) {
          return RingWriter::Open(
              *home, me.TakeSecond(),
              {.buffers = kBuffers, .bytes = kBytes, .patience = kPatience},
              deadline);
        });
    done = ring.ok() ? PutAll(me, **ring, stream) : ring.status();
    // Whoever has died, the stream is not left standing.
    stream.Sync();
  }
  me.PeerIsLost();
  ExpectSoon([&] {
    Must(home->pool().Trim());
    const PoolStatistics now = home->pool().statistics();
    return now.live_blocks == 0 && now.held == 0 && now.reserved == 0 &&
           now.peers == 0;
  });
  EXPECT_EQ(home->fences().statistics().fences, 0u);
  EXPECT_EQ(home->fences().statistics().waiting, 0u);
  return done;
}

absl::Status ReadRing(Party& me) {
  const Stream stream;
  absl::StatusOr<std::unique_ptr<RingReader>> ring =
      me.Try("RingReader::Open", Again::kNo, [&](absl::Time deadline) {
        return RingReader::Open(me.device(), me.TakeSecond(),
                                {.patience = kPatience}, deadline);
      });
  if (!ring.ok()) return ring.status();
  const absl::Status done = TakeAll(me, **ring, stream);
  ring->reset();
  stream.Sync();
  return done;
}

}  // namespace vmm::testing
