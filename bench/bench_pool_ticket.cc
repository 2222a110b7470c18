// What sharing a block of a pool costs on the processor: writing and reading a
// ticket, and each step of the share table. Needs no driver.
//
//   bench_pool_ticket [--benchmark_*]   --driver=... is taken and ignored
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "tests/support/must.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"
#include "vmm/pool/pool_ticket.h"

namespace {

using vmm::PoolTicket;
using vmm::PoolTicketBytes;
using vmm::pool::SharedTableView;
using vmm::pool::ShareTable;
using vmm::pool::SlotRef;
using vmm::testing::Must;

constexpr std::uint64_t kBlock = 65536;

// An owner and a peer, with blocks that are shared.
class World {
 public:
  explicit World(std::size_t blocks) {
    while (tickets_.size() < blocks) {
      const std::uint64_t offset = tickets_.size() * kBlock;
      const SlotRef ref = Must(table_.Publish(1, offset, kBlock));
      tickets_.push_back({{}, 1, ref.slot, ref.generation, offset, kBlock});
    }
  }
  ShareTable& table() { return table_; }
  SharedTableView& view() { return *view_; }
  const std::vector<PoolTicket>& tickets() const { return tickets_; }

 private:
  ShareTable table_ = Must(ShareTable::Create({}));
  vmm::pool::PeerId peer_ = Must(table_.AddPeer());
  std::unique_ptr<SharedTableView> view_ = Must(SharedTableView::Open(
      table_.table_handle(), table_.holds_handle(peer_), {}));
  std::vector<PoolTicket> tickets_;
};

PoolTicket Sample() { return {{}, 2, 3, 4, 5 * kBlock, kBlock}; }

void Encode(benchmark::State& state) {
  PoolTicket ticket = Sample();
  for (auto _ : state) {
    benchmark::DoNotOptimize(ticket);
    PoolTicketBytes bytes = vmm::EncodePoolTicket(ticket);
    benchmark::DoNotOptimize(bytes);
  }
}
BENCHMARK(Encode);

void Decode(benchmark::State& state) {
  PoolTicketBytes bytes = vmm::EncodePoolTicket(Sample());
  for (auto _ : state) {
    benchmark::DoNotOptimize(bytes);
    auto ticket = vmm::DecodePoolTicket(bytes);
    benchmark::DoNotOptimize(ticket);
  }
}
BENCHMARK(Decode);

// The owner alone: what sharing adds to a block's life.
void PublishAndWithdraw(benchmark::State& state) {
  World world(0);
  ShareTable& table = world.table();
  for (auto _ : state) {
    const SlotRef ref = *table.Publish(1, 0, kBlock);
    table.Withdraw(ref.slot);
    if (table.Held(ref.slot)) state.SkipWithError("held by nobody");
    table.Recycle(ref.slot);
  }
}
BENCHMARK(PublishAndWithdraw);

// The peer alone, over as many blocks as the argument says.
void AcquireAndRelease(benchmark::State& state) {
  World world(static_cast<std::size_t>(state.range(0)));
  const std::vector<PoolTicket>& tickets = world.tickets();
  std::size_t next = 0;
  for (auto _ : state) {
    const PoolTicket& ticket = tickets[next];
    if (!world.view().Acquire(ticket).ok()) state.SkipWithError("refused");
    world.view().Release(ticket.slot);
    if (++next == tickets.size()) next = 0;
  }
}
BENCHMARK(AcquireAndRelease)->Arg(1)->Arg(1000)->Arg(100'000);

// A block that is held already: a second import.
void AcquireAgainAndRelease(benchmark::State& state) {
  World world(1);
  const PoolTicket ticket = world.tickets()[0];
  Must(world.view().Acquire(ticket));
  for (auto _ : state) {
    if (!world.view().Acquire(ticket).ok()) state.SkipWithError("refused");
    world.view().Release(ticket.slot);
  }
  world.view().Release(ticket.slot);
}
BENCHMARK(AcquireAgainAndRelease);

// All of it, by one thread: no cache line travels between processors.
void WholeLifeOfAShare(benchmark::State& state) {
  World world(0);
  ShareTable& table = world.table();
  for (auto _ : state) {
    const SlotRef ref = *table.Publish(1, 0, kBlock);
    const PoolTicketBytes bytes =
        vmm::EncodePoolTicket({{}, 1, ref.slot, ref.generation, 0, kBlock});
    const auto ticket = vmm::DecodePoolTicket(bytes);
    if (!world.view().Acquire(*ticket).ok()) state.SkipWithError("refused");
    world.view().Release(ref.slot);
    table.Withdraw(ref.slot);
    if (table.Held(ref.slot)) state.SkipWithError("held by nobody");
    table.Recycle(ref.slot);
  }
}
BENCHMARK(WholeLifeOfAShare);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    // ./dev bench gives every program the same arguments.
    if (!absl::StartsWith(argv[i], "--driver=")) {
      std::fprintf(stderr, "bench_pool_ticket: error: unknown option %s\n",
                   argv[i]);
      return EXIT_FAILURE;
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return EXIT_SUCCESS;
}
