// vmmshare's pool: segments whose handles travel once, and tickets.
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bench/compare/route.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace bench::compare {
namespace {

class PoolOwner : public Owner {
 public:
  // The pool is served from its beginning, as by a program that will share:
  // a segment is exported when it is made.
  static absl::StatusOr<std::unique_ptr<Owner>> Start(
      Gpu& gpu, const vmm::PoolOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<vmm::Pool> pool,
                     vmm::Pool::Create(gpu.owner(), options));
    ASSIGN_OR_RETURN(std::unique_ptr<vmm::Endpoint> endpoint,
                     vmm::Endpoint::Start({}));
    ASSIGN_OR_RETURN(vmm::Share share, endpoint->Serve(*pool));
    return std::unique_ptr<Owner>(new PoolOwner(
        gpu, std::move(pool), std::move(endpoint), std::move(share)));
  }

  absl::StatusOr<Introduction> Introduce() override {
    Introduction introduction;
    introduction.bytes.assign(share_.ticket().begin(), share_.ticket().end());
    return introduction;
  }

  absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) override {
    ASSIGN_OR_RETURN(CUdeviceptr address, pool_->Allocate(size, stream));
    return Block{address, size, 0};
  }

  absl::Status Free(const Block& block, CUstream stream) override {
    return pool_->Free(block.address, stream);
  }

  absl::Status Export(const Block& block, Outgoing* out) override {
    absl::StatusOr<vmm::PoolTicket> ticket = pool_->Export(block.address);
    if (!ticket.ok()) return ticket.status();
    out->Put(vmm::EncodePoolTicket(*ticket));
    return absl::OkStatus();
  }

  absl::Status ExportLot(absl::Span<const Block> blocks,
                         absl::Span<Outgoing> out) override {
    std::array<CUdeviceptr, kLot> addresses;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      addresses[i] = blocks[i].address;
    }
    absl::StatusOr<std::vector<vmm::PoolTicket>> tickets =
        pool_->ExportAll(absl::MakeConstSpan(addresses.data(), blocks.size()));
    if (!tickets.ok()) return tickets.status();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      out[i].Put(vmm::EncodePoolTicket((*tickets)[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Trim() override { return pool_->Trim().status(); }
  absl::Status Leave(CUstream stream) override {
    return pool_->ReleaseStream(stream, absl::Now() + absl::Minutes(1));
  }

 private:
  PoolOwner(Gpu& gpu, std::unique_ptr<vmm::Pool> pool,
            std::unique_ptr<vmm::Endpoint> endpoint, vmm::Share share)
      : Owner(gpu),
        pool_(std::move(pool)),
        endpoint_(std::move(endpoint)),
        share_(std::move(share)) {}

  // Destroyed from the last to the first.
  std::unique_ptr<vmm::Pool> pool_;
  std::unique_ptr<vmm::Endpoint> endpoint_;
  vmm::Share share_;
};

class PoolImporter : public Importer {
 public:
  explicit PoolImporter(Gpu& gpu) : Importer(gpu) {
    Kept().swap(blocks_);
    blocks_.reserve(kBlocks);
  }
  ~PoolImporter() override {
    blocks_.clear();
    Kept().swap(blocks_);
  }
  PoolImporter(const PoolImporter&) = delete;
  PoolImporter& operator=(const PoolImporter&) = delete;

  absl::Status Meet(const Introduction& owner) override {
    deadline_ = absl::Now() + absl::Hours(1);
    ASSIGN_OR_RETURN(
        pool_,
        vmm::ImportedPool::Subscribe(
            gpu_.driver(),
            absl::string_view(reinterpret_cast<const char*>(owner.bytes.data()),
                              owner.bytes.size()),
            {.grants = {{vmm::Location::On(gpu_.device()),
                         vmm::Access::kReadWrite}}},
            deadline_));
    return absl::OkStatus();
  }

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    absl::StatusOr<vmm::ImportedBlock> imported = Timed(
        steps, Step::kImport, [&]() -> absl::StatusOr<vmm::ImportedBlock> {
          absl::StatusOr<vmm::PoolTicket> ticket =
              vmm::DecodePoolTicket(in.blob);
          if (!ticket.ok()) return ticket.status();
          return pool_->Import(*ticket, deadline_);
        });
    if (!imported.ok()) return imported.status();
    const Block block{imported->address(), in.size, blocks_.size()};
    blocks_.emplace_back(*std::move(imported));
    ++open_;
    return block;
  }

  absl::Status ImportLot(absl::Span<Incoming> in, Steps* steps,
                         absl::Span<Block> out) override {
    std::array<vmm::PoolTicket, kLot> tickets;
    absl::StatusOr<std::vector<vmm::ImportedBlock>> imported =
        Timed(steps, Step::kImport,
              [&]() -> absl::StatusOr<std::vector<vmm::ImportedBlock>> {
                for (std::size_t i = 0; i < in.size(); ++i) {
                  absl::StatusOr<vmm::PoolTicket> ticket =
                      vmm::DecodePoolTicket(in[i].blob);
                  if (!ticket.ok()) return ticket.status();
                  tickets[i] = *ticket;
                }
                return pool_->ImportAll(
                    absl::MakeConstSpan(tickets.data(), in.size()), deadline_);
              });
    if (!imported.ok()) return imported.status();
    for (std::size_t i = 0; i < in.size(); ++i) {
      out[i] = {(*imported)[i].address(), in[i].size, blocks_.size()};
      blocks_.emplace_back(std::move((*imported)[i]));
      ++open_;
    }
    return absl::OkStatus();
  }

  absl::Status Close(const Block& block) override {
    blocks_[block.own].reset();
    if (--open_ == 0) blocks_.clear();
    return absl::OkStatus();
  }

 private:
  using Blocks = std::vector<std::optional<vmm::ImportedBlock>>;

  static constexpr std::size_t kBlocks = 32 << 10;
  // The empty list of the importer before: its memory was used, so that no
  // import and no connecting waits for the kernel to make it.
  static Blocks& Kept() {
    static auto* const kept = [] {
      auto* made = new Blocks(kBlocks);
      made->clear();
      return made;
    }();
    return *kept;
  }

  absl::Time deadline_;
  std::unique_ptr<vmm::ImportedPool> pool_;
  Blocks blocks_;
  std::size_t open_ = 0;  // Of them.
};

absl::StatusOr<std::unique_ptr<Owner>> Own(Gpu& gpu) {
  return PoolOwner::Start(gpu, {});
}

// As large as the pieces of legacy IPC's arena.
absl::StatusOr<std::unique_ptr<Owner>> OwnOfGib(Gpu& gpu) {
  return PoolOwner::Start(gpu, {.first_segment_size = std::uint64_t{1} << 30});
}

}  // namespace

const Route routes::kPool = {"pool", "vmmshare pool", false, &Own,
                             &Make<PoolImporter>};
const Route routes::kPoolOfGib = {"pool-1GiB", "vmmshare pool, 1 GiB segments",
                                  false, &OwnOfGib, &Make<PoolImporter>};

}  // namespace bench::compare
