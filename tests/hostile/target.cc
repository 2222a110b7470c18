#include "tests/hostile/target.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/door.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/queue/ring.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::Listener;

// How long any of them is patient with a peer that says nothing: longer than an
// honest one is kept from its next word by a busy machine and a sanitizer.
constexpr absl::Duration kPatience = absl::Seconds(5);

void Wait(Channel& orders) {
  while (orders.Receive(absl::Now() + absl::Hours(1)).ok()) {
  }
}

int ServeMemory(Channel& orders, const std::string& directory) {
  const Here here;
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const auto pool = Must(Pool::Create(here.device, {}));
  const auto endpoint = Must(Endpoint::Start({.listener = {directory, ""},
                                              .request_timeout = kPatience,
                                              .transfer_timeout = kPatience}));
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const Share served = Must(endpoint->Serve(*pool));
  const CUdeviceptr block = Must(pool->Allocate(1 << 20, nullptr));
  Tell(orders, absl::StrCat(published.ticket(), "\n", served.ticket()));
  Wait(orders);
  Must(pool->Free(block, nullptr));
  return 0;
}

int ServeKeeper(Channel& orders, const std::string& directory) {
  keeper::ServerOptions options;
  options.address = directory + "/keeper";
  options.first_request_timeout = kPatience;
  options.transfer_timeout = kPatience;
  const auto server = Must(keeper::Server::Start(
      std::move(options), absl::NotFoundError("none in this test"), {}));
  Tell(orders, server->address());
  Wait(orders);
  return 0;
}

absl::Time Soon() { return absl::Now() + kPatience; }

int ServeRings(Channel& orders, const std::string& directory) {
  const Here here;
  const auto home = Must(RingHome::Create(
      here.device, {.endpoint = {.listener = {directory, ""}}}));
  const Door writers(directory, [&](Channel channel) {
    const CurrentContext current = Must(here.context.MakeCurrent());
    const Stream stream;
    const auto ring = RingWriter::Open(*home, std::move(channel),
                                       {.buffers = kTargetRingBuffers,
                                        .bytes = kTargetRingBytes,
                                        .patience = kPatience},
                                       Soon());
    if (!ring.ok()) return;
    for (int i = 0; i < kTargetRingItems; ++i) {
      const auto buffer = (*ring)->Acquire(stream.get(), Soon());
      if (!buffer.ok()) break;
      if (!(*ring)->Publish(*buffer, stream.get(), Soon()).ok()) break;
    }
    if (!(*ring)->Finish(Soon()).ok()) (*ring)->LetGo();
    stream.Sync();
  });
  const Door readers(directory, [&](Channel channel) {
    const CurrentContext current = Must(here.context.MakeCurrent());
    const Stream stream;
    const auto ring = RingReader::Open(here.device, std::move(channel),
                                       {.patience = kPatience}, Soon());
    if (!ring.ok()) return;
    for (;;) {
      const auto buffer = (*ring)->Acquire(stream.get(), Soon());
      if (!buffer.ok()) break;
      if (!(*ring)->Release(*buffer, stream.get()).ok()) break;
    }
    if (!(*ring)->Finish(Soon()).ok()) (*ring)->LetGo();
    stream.Sync();
  });
  Tell(orders, absl::StrCat(writers.address(), "\n", readers.address()));
  Wait(orders);
  return 0;
}

int Serve(const std::vector<std::string>& args) {
  Channel orders = Dial(args[1]);
  if (args[0] == "endpoint") return ServeMemory(orders, args[2]);
  if (args[0] == "keeper") return ServeKeeper(orders, args[2]);
  return ServeRings(orders, args[2]);
}
const bool kTarget = RegisterChild("hostile-target", &Serve);

}  // namespace

Target::Target(const std::string& kind, Listener& listener,
               const std::string& directory)
    : child_(Child::Start("hostile-target",
                          {kind, listener.address(), directory})),
      orders_(Must(listener.Accept(Late()))),
      says_(absl::StrSplit(Hear(orders_), '\n')) {}

void Target::End() {
  orders_.Close();
  EXPECT_EQ(child_.Wait(), 0);
}

std::string Target::Open() const {
  std::vector<std::string> lines;
  for (const auto& each : std::filesystem::directory_iterator(
           absl::StrCat("/proc/", child_.pid(), "/fd"))) {
    std::error_code gone;
    lines.push_back(std::filesystem::read_symlink(each.path(), gone).string());
  }
  std::sort(lines.begin(), lines.end());
  return absl::StrJoin(lines, "\n");
}

}  // namespace vmm::testing
