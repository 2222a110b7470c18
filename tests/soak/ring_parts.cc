// The two sides of rings: one item after another, a new ring for each visit.
// args: where the orders are, a directory.
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "tests/gpu/stream.h"
#include "tests/ipc/door.h"
#include "tests/soak/part.h"
#include "tests/soak/soak.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

using platform::Channel;

unsigned WordOf(std::uint64_t number) {
  return static_cast<unsigned>(number * 2654435761u);
}

// A reader may be killed or stopped at any moment: then the ring is let go.
void WriteAll(const Here& here, RingHome& home, Channel visitor) {
  const CurrentContext current = Must(here.context.MakeCurrent());
  const Stream stream;
  const absl::StatusOr<std::unique_ptr<RingWriter>> ring = RingWriter::Open(
      home, std::move(visitor),
      {.buffers = kSoakRingBuffers, .bytes = kSoakRingBytes}, Late());
  if (!ring.ok()) return;
  for (int i = 0; i < kSoakRingItems; ++i) {
    const absl::StatusOr<RingBuffer> buffer =
        (*ring)->Acquire(stream.get(), Late());
    if (!buffer.ok()) break;
    EXPECT_EQ(
        TestDriver()->cuMemsetD32Async(buffer->address, WordOf(buffer->number),
                                       buffer->size / 4, stream.get()),
        CUDA_SUCCESS);
    if (!(*ring)->Publish(*buffer, stream.get(), Late()).ok()) break;
  }
  if (!(*ring)->Finish(Late()).ok()) (*ring)->LetGo();
  stream.Sync();
}

int Write(const std::vector<std::string>& args) {
  const Here here;
  const auto home = Must(RingHome::Create(
      here.device, {.endpoint = {.listener = {.directory = args[1]}}}));
  const Door door(args[1], [&](Channel visitor) {
    WriteAll(here, *home, std::move(visitor));
  });
  const std::string file = args[1] + "/rings";
  std::ofstream(file + ".new") << door.address() << "\n";
  std::filesystem::rename(file + ".new", file);
  Channel orders = Dial(args[0]);
  return Play(orders, {.rest = [&] {
                ExpectSoon([&] {
                  Must(home->pool().Trim());
                  const PoolStatistics now = home->pool().statistics();
                  return now.reserved == 0 && now.peers == 0 &&
                         home->fences().statistics().fences == 0;
                });
              }});
}
const bool kWriter = RegisterChild("soak-ring-writer", &Write);

void ReadAll(const Here& here, const std::string& address) {
  const Stream stream;
  const auto ring = RingReader::Open(here.device, Dial(address), {}, Late());
  EXPECT_TRUE(ring.ok()) << ring.status();
  if (!ring.ok()) return;
  std::vector<std::uint32_t> words(kSoakRingBytes / 4);
  for (;;) {
    const absl::StatusOr<RingBuffer> buffer =
        (*ring)->Acquire(stream.get(), Late());
    if (absl::IsOutOfRange(buffer.status())) break;
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    if (!buffer.ok()) return;
    EXPECT_EQ(TestDriver()->cuMemcpyDtoHAsync(words.data(), buffer->address,
                                              kSoakRingBytes, stream.get()),
              CUDA_SUCCESS);
    stream.Sync();
    EXPECT_TRUE(words == std::vector<std::uint32_t>(words.size(),
                                                    WordOf(buffer->number)))
        << "item " << buffer->number;
    const absl::Status released = (*ring)->Release(*buffer, stream.get());
    EXPECT_TRUE(released.ok()) << released;
  }
  const absl::Status finished = (*ring)->Finish(Late());
  EXPECT_TRUE(finished.ok()) << finished;
}

int Read(const std::vector<std::string>& args) {
  const Here here;
  std::string address;
  std::ifstream file(args[1] + "/rings");
  EXPECT_TRUE(std::getline(file, address));
  Channel orders = Dial(args[0]);
  return Play(orders, {.step = [&] { ReadAll(here, address); }});
}
const bool kReader = RegisterChild("soak-ring-reader", &Read);

}  // namespace
}  // namespace vmm::testing
