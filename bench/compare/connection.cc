#include "bench/compare/connection.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

using vmm::platform::Channel;
using vmm::platform::kMaxHandles;
using vmm::platform::kMaxPayload;
using vmm::platform::OsHandle;

// One kImport message under construction.
class Batch {
 public:
  Batch(const Route& route, const ShareOptions& options) {
    header_.route = IndexOf(route);
    header_.options = options;
  }

  bool empty() const { return header_.count == 0; }
  // Whether a whole lot has room, whatever its blobs turn out to be. Otherwise
  // the last lots of a message would be smaller and smaller ones.
  bool HasRoom() const {
    return bytes_.size() - used_ >=
               kLot * (sizeof(BlobHeader) + 4 + kMaxBlob) &&
           kMaxHandles - handle_count_ >= kLot;
  }

  // REQUIRES: there is room, and at most kLot of them.
  absl::Status Add(Owner& owner, absl::Span<const Item> items,
                   CallCounter& counter) {
    for (std::size_t i = 0; i < items.size(); ++i) blocks_[i] = items[i].block;
    const auto out = absl::MakeSpan(lot_.data(), items.size());
    absl::Status exported = counter.Count([&] {
      return header_.options.alone
                 ? owner.Export(blocks_[0], &lot_[0])
                 : owner.ExportLot(
                       absl::MakeConstSpan(blocks_.data(), items.size()), out);
    });
    if (!exported.ok()) return exported;
    for (std::size_t i = 0; i < items.size(); ++i) Put(items[i], out[i]);
    return absl::OkStatus();
  }

  // Sends it and starts the next.
  absl::Status Send(Channel& channel) {
    std::array<const OsHandle*, kMaxHandles> handles{};
    for (std::size_t i = 0; i < handle_count_; ++i) handles[i] = &handles_[i];
    header_.sent_at = NowNs();
    std::memcpy(bytes_.data(), &header_, sizeof(header_));
    absl::Status sent = channel.Send(
        kImport, absl::MakeConstSpan(bytes_.data(), used_),
        absl::MakeConstSpan(handles.data(), handle_count_), Deadline());
    for (std::size_t i = 0; i < handle_count_; ++i) handles_[i].Reset();
    handle_count_ = 0;
    header_.count = 0;
    used_ = sizeof(header_);
    return sent;
  }

 private:
  void Put(const Item& item, Outgoing& out) {
    const bool has_handle = out.handle.has_value();
    if (has_handle) handles_[handle_count_++] = std::move(out.handle);
    const BlobHeader blob{item.block.size, item.word, has_handle ? 1U : 0U};
    const auto length32 = static_cast<std::uint32_t>(out.length);
    std::uint8_t* const at = bytes_.data() + used_;
    std::memcpy(at, &blob, sizeof(blob));
    std::memcpy(at + sizeof(blob), &length32, sizeof(length32));
    std::memcpy(at + sizeof(blob) + sizeof(length32), out.blob.data(),
                out.length);
    used_ += sizeof(blob) + sizeof(length32) + out.length;
    ++header_.count;
  }

  ImportHeader header_;
  std::array<Block, kLot> blocks_;
  std::array<Outgoing, kLot> lot_;
  std::array<std::uint8_t, kMaxPayload> bytes_{};
  std::size_t used_ = sizeof(ImportHeader);
  std::array<OsHandle, kMaxHandles> handles_;
  std::size_t handle_count_ = 0;
};

}  // namespace

absl::StatusOr<Connection> Connection::Own(Gpu& gpu, const Route& route,
                                           Link& link, bool corrupt) {
  Connection connection(gpu, route, link, corrupt);
  const std::int64_t start = NowNs();
  ASSIGN_OR_RETURN(connection.owner_, route.own(gpu));
  connection.setup_ns_ = static_cast<double>(NowNs() - start);
  return connection;
}

absl::Status Connection::Meet() {
  const std::int64_t start = NowNs();
  ASSIGN_OR_RETURN(Introduction introduction, owner_->Introduce());
  setup_ns_ += static_cast<double>(NowNs() - start);
  ASSIGN_OR_RETURN(Answer opened, link_->Open(*route_, introduction));
  setup_ns_ += opened.wall_ns;
  return absl::OkStatus();
}

absl::StatusOr<Connection> Connection::Open(Gpu& gpu, const Route& route,
                                            Link& link, bool corrupt) {
  ASSIGN_OR_RETURN(Connection connection, Own(gpu, route, link, corrupt));
  RETURN_IF_ERROR(connection.Meet());
  return connection;
}

absl::StatusOr<Connection::Cpu> Connection::CpuSoFar() {
  ASSIGN_OR_RETURN(Answer importer, link_->Ask(kUsage, *route_));
  return Cpu{static_cast<double>(ProcessCpuNs()), importer.process_ns};
}

absl::StatusOr<std::vector<Item>> Connection::Create(
    absl::Span<const std::uint64_t> sizes, std::uint64_t seed,
    double* create_ns) {
  std::vector<Item> items;
  items.reserve(sizes.size());
  absl::Status status;
  const std::int64_t start = NowNs();
  for (const std::uint64_t size : sizes) {
    absl::StatusOr<Block> block = owner_->Create(size, gpu_->stream());
    if (!block.ok()) {
      status = block.status();
      break;
    }
    items.push_back({*block, FillWord(seed, items.size())});
  }
  if (create_ns != nullptr) {
    *create_ns = static_cast<double>(NowNs() - start);
  }
  for (std::size_t i = 0; status.ok() && i < items.size(); ++i) {
    status = gpu_->Fill(items[i].block, items[i].word, corrupt_);
  }
  // A peer that imports must find what was written.
  if (status.ok()) status = gpu_->Synchronize();
  if (status.ok()) return items;
  Free(items).IgnoreError();
  return status;
}

absl::StatusOr<Shared> Connection::Share(absl::Span<const Item> items,
                                         const ShareOptions& options) {
  Shared shared;
  shared.exports.reserve(options.alone ? items.size()
                                       : items.size() / kLot + 1);
  auto batch = std::make_unique<Batch>(*route_, options);
  const std::int64_t begin = NowNs();
  std::size_t next = 0;
  while (next < items.size()) {
    CallCounter counter(options.count_calls ? &shared.calls : nullptr);
    shared.exporter.Start();
    std::int64_t lot_start = NowNs();
    while (next < items.size() && batch->HasRoom()) {
      // One at a time where calls are counted: each is seen for itself.
      const bool one = options.count_calls || options.alone;
      const absl::Span<const Item> lot = items.subspan(next, one ? 1 : kLot);
      RETURN_IF_ERROR(batch->Add(*owner_, lot, counter));
      next += lot.size();
      const std::int64_t now = NowNs();
      shared.exports.push_back(static_cast<double>(now - lot_start) /
                               static_cast<double>(lot.size()));
      lot_start = now;
    }
    shared.exporter.Stop();
    RETURN_IF_ERROR(batch->Send(link_->channel()));
  }
  Writer finish;
  finish.Put(IndexOf(*route_));
  finish.Put(options.touch);
  ASSIGN_OR_RETURN(Answer answer, link_->Ask(kFinish, finish));
  if (answer.count < items.size()) {
    return absl::InternalError(absl::StrCat("the importer has ", answer.count,
                                            " blocks; ", items.size(),
                                            " were sent"));
  }
  shared.total_ns = static_cast<double>(answer.done_at - begin);
  shared.importer = std::move(answer);
  return shared;
}

absl::StatusOr<double> Connection::Free(absl::Span<const Item> items) {
  absl::Status status;
  const std::int64_t start = NowNs();
  for (const Item& item : items) {
    status.Update(owner_->Free(item.block, gpu_->stream()));
  }
  const auto took = static_cast<double>(NowNs() - start);
  status.Update(gpu_->Synchronize());
  if (!status.ok()) return status;
  return took;
}

absl::Status Connection::Shut() {
  absl::Status status = link_->Ask(kShut, *route_).status();
  owner_.reset();
  return status;
}

absl::Status Connection::End(absl::Span<const Item> items,
                             absl::Status before) {
  before.Update(CloseAll().status());
  before.Update(Free(items).status());
  before.Update(Shut());
  return before;
}

}  // namespace bench::compare
