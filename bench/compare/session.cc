#include "bench/compare/session.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/compare/calls.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// What a session's lists have room for.
constexpr std::size_t kBlocks = 32 << 10;
constexpr std::size_t kLots = 4 << 10;

absl::Status ImportOne(Importer& importer, Incoming& in, Steps* steps,
                       Block* out) {
  ASSIGN_OR_RETURN(*out, importer.Import(std::move(in), steps));
  return absl::OkStatus();
}

}  // namespace

void Spin(double ns) {
  const std::int64_t start = NowNs();
  while (static_cast<double>(NowNs() - start) < ns) {
  }
}

Session::Lists Session::Lists::Make() {
  Lists lists{std::vector<Imported>(kBlocks), std::vector<double>(kLots)};
  lists.blocks.clear();
  lists.lots.clear();
  return lists;
}

Session::Session(Gpu& gpu, Gather& gather, std::unique_ptr<Importer> importer,
                 double slow_ns, Lists lists)
    : gpu_(gpu),
      gather_(gather),
      importer_(std::move(importer)),
      slow_ns_(slow_ns),
      lists_(std::move(lists)) {
  lists_.blocks.reserve(kBlocks);
  lists_.lots.reserve(kLots);
}

// The clocks are read around it and around each lot of blocks, so that reading
// them costs little beside a block.
void Session::Import(vmm::platform::Message& message,
                     std::int64_t received_at) {
  Reader reader(message.payload);
  const auto header = reader.Get<ImportHeader>();
  so_far_.transport_ns = static_cast<double>(received_at - header.sent_at);
  if (!status_.ok()) return;
  std::size_t next_handle = 0;
  const bool alone = header.options.alone;
  const bool counts = header.options.count_calls;
  Steps* const steps = header.options.with_steps ? &so_far_.steps : nullptr;
  CallCounter counter(counts ? &so_far_.calls : nullptr);
  meter_.Start();
  std::int64_t lot_start = NowNs();
  std::array<Incoming, kLot> lot;
  std::array<Block, kLot> blocks;
  std::array<std::uint32_t, kLot> words{};
  // One at a time where calls are counted: each is seen for itself.
  const std::uint32_t most = alone || counts ? 1 : std::uint32_t{kLot};
  for (std::uint32_t left = header.count; left > 0;) {
    const std::uint32_t count = std::min(left, most);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto blob = reader.Get<BlobHeader>();
      lot[i].size = blob.size;
      lot[i].blob = reader.GetBytes();
      words[i] = blob.word;
      if (blob.has_handle != 0 && next_handle < message.handles.size()) {
        lot[i].handle = std::move(message.handles[next_handle++]);
      }
    }
    // The parsing of the message is no part of a block's import.
    if (alone) lot_start = NowNs();
    status_.Update(counter.Count([&] {
      return alone ? ImportOne(*importer_, lot[0], steps, &blocks[0])
                   : importer_->ImportLot(absl::MakeSpan(lot.data(), count),
                                          steps,
                                          absl::MakeSpan(blocks.data(), count));
    }));
    if (slow_ns_ > 0) Spin(slow_ns_ * count);
    const std::int64_t imported_at = alone ? NowNs() : 0;
    if (!status_.ok()) break;
    for (std::uint32_t i = 0; i < count; ++i) {
      lists_.blocks.push_back({blocks[i], words[i]});
    }
    const std::int64_t now = alone ? imported_at : NowNs();
    lists_.lots.push_back(static_cast<double>(now - lot_start) / count);
    lot_start = now;
    left -= count;
  }
  meter_.Stop();
  if (!reader.ok()) status_ = absl::InternalError("a batch was cut");
}

absl::Status Session::Finish(bool touch, Answer* answer) {
  if (!status_.ok()) return status_;
  static_cast<Figures&>(*answer) = std::exchange(so_far_, {});
  answer->count = blocks().size();
  answer->wall_ns = meter_.wall_ns;
  answer->process_ns = meter_.process_ns;
  answer->lots = lists_.lots;
  if (touch) {
    const std::int64_t start = NowNs();
    RETURN_IF_ERROR(Touch());
    answer->touch_ns = static_cast<double>(NowNs() - start);
    answer->steps.Add(Step::kTouch, answer->touch_ns);
  }
  meter_ = Meter{};
  lists_.lots.clear();
  return absl::OkStatus();
}

absl::Status Session::Touch() const {
  if (blocks().size() == 1) return gpu_.Touch(blocks()[0].block);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(blocks().size());
  for (const Imported& imported : blocks()) {
    addresses.push_back(imported.block.address);
  }
  return gather_.ReadOneWordOfEach(addresses);
}

absl::Status Session::Verify(Answer* answer) const {
  answer->count = blocks().size();
  for (std::size_t i = 0; i < blocks().size(); ++i) {
    const absl::Status right = gpu_.Verify(blocks()[i].block, blocks()[i].word);
    if (!right.ok()) {
      return vmm::platform::Annotate(right, absl::StrCat("block ", i));
    }
  }
  return absl::OkStatus();
}

absl::Status Session::Close() {
  absl::Status status;
  for (const Imported& imported : blocks()) {
    status.Update(importer_->Close(imported.block));
  }
  lists_.blocks.clear();
  return status;
}

Session::Lists Session::TakeLists() && {
  // Those of batches that failed are still there.
  lists_.lots.clear();
  return std::move(lists_);
}

}  // namespace bench::compare
