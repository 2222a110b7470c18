// The consumer's side of a ring.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/annotate.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/process.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/queue/internal/last_point.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/ring.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

// How long before the deadline a reader that cannot join gives up, at most.
constexpr absl::Duration kToldBefore = absl::Seconds(1);

using ring::RingPeer;

// A buffer, once an item in it has come.
struct Buffer {
  ImportedBlock block;
  Fence full;
  Fence free;
  RingItem item;  // The last that came.
  bool held = false;
  std::uint64_t awaited = 0;  // Laps, by some stream.
  std::uint64_t acquired = 0;
  std::uint64_t released = 0;
  ring::LastPoint last = {};  // Of this process's GPU.
};

absl::Status NoItem(const RingItem& item, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("the writer sent item ", item.number,
                                          " of lap ", item.lap, ", ", why));
}

}  // namespace

class RingReader::State : public platform::Abandonable {
 public:
  State(platform::Channel channel, absl::Duration patience)
      : forks_(platform::ForksSoFar()),
        patience_(patience),
        peer_(std::move(channel), "writer") {}

  bool IsOfAnotherProcess() const { return platform::ForksSoFar() != forks_; }
  absl::Status Join(const Device& device, const RingReaderOptions& options,
                    Deadline deadline);
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);
  absl::Status Release(const RingBuffer& buffer, CUstream stream);
  absl::Status Await(const RingBuffer& buffer, Deadline deadline);
  absl::Status Finish(Deadline deadline);
  void LetGo();
  // Whether nothing of it is in use any more, so that it can be destroyed.
  bool End();

 private:
  absl::Status Subscribe(const Device& device, const RingReaderOptions& options,
                         Deadline deadline);
  absl::StatusOr<RingItem> Next(Deadline deadline);
  absl::StatusOr<Buffer*> BufferOf(const RingItem& item, Deadline deadline);
  // Whether this process's GPU has done with the buffer by the deadline, or,
  // if `while_here`, before the writer's end is proven: what that has forked
  // may still bring the contents.
  bool HasPassed(Buffer& buffer, Deadline deadline, bool while_here);
  // The buffer of an item that is acquired; null when it is not.
  Buffer* Held(const RingBuffer& buffer);
  absl::Status AwaitContents(Buffer& buffer, Deadline deadline);
  absl::Status Judge(const absl::Status& status, Deadline deadline);
  // Why the ring has ended. Whether the writer's end is proven may be known
  // since.
  absl::Status Over() {
    return lost_.ok() ? over_ : Judge(lost_, absl::InfinitePast());
  }
  // Lets this process's streams go that wait for the writer.
  void LetGoOfWriter() {
    for (std::optional<Buffer>& buffer : buffers_) {
      if (buffer.has_value()) buffer->full.Abandon().IgnoreError();
    }
  }

  const std::uint64_t forks_;
  const absl::Duration patience_;
  RingPeer peer_;
  std::optional<platform::Driver> driver_;  // Once it has joined.
  // Go after the buffers.
  std::unique_ptr<ImportedPool> pool_;
  std::unique_ptr<ImportedFencePool> fences_;
  std::vector<std::optional<Buffer>> buffers_;
  std::uint64_t bytes_ = 0;
  // Received, and not acquired because of an error that may pass.
  std::optional<RingItem> pending_;
  std::uint64_t acquired_ = 0;          // Items.
  std::optional<std::uint64_t> count_;  // Of all items, once it is known.
  absl::Status over_;                   // Why the ring has ended.
  absl::Status lost_;  // The same, of a writer whose end is not proven.
};

absl::Status RingReader::State::Subscribe(const Device& device,
                                          const RingReaderOptions& options,
                                          Deadline deadline) {
  absl::StatusOr<platform::Message> message = peer_.Receive(deadline);
  if (!message.ok()) {
    return platform::Annotate(message.status(), "no ring was offered");
  }
  if (message->type != ring::kRingOffer) {
    return absl::DataLossError(
        absl::StrCat("a message of type 0x", absl::Hex(message->type),
                     " came where the offer of a ring was expected"));
  }
  absl::StatusOr<ring::Offer> offer = ring::DecodeOffer(message->payload);
  if (!offer.ok()) return offer.status();
  absl::Status watched = peer_.ReceiveLifeline(deadline);
  if (!watched.ok()) return watched;
  absl::StatusOr<std::unique_ptr<ImportedPool>> pool = ImportedPool::Subscribe(
      device.driver(), offer->pool,
      {.grants = {{Location::On(device), options.access}},
       .host_access = options.host_access},
      deadline, options.owners);
  if (!pool.ok()) return pool.status();
  absl::StatusOr<std::unique_ptr<ImportedFencePool>> fences =
      ImportedFencePool::Subscribe(device.driver(), offer->fences,
                                   {.devices = {device}}, deadline,
                                   options.owners);
  if (!fences.ok()) return fences.status();
  driver_ = device.driver();
  pool_ = *std::move(pool);
  fences_ = *std::move(fences);
  buffers_.resize(offer->buffers);
  bytes_ = offer->bytes;
  return absl::OkStatus();
}

absl::Status RingReader::State::Join(const Device& device,
                                     const RingReaderOptions& options,
                                     Deadline deadline) {
  // In time for the writer, whose deadline may be the same, to hear why not.
  const absl::Duration left = deadline.Left();
  const Deadline early =
      left == absl::InfiniteDuration()
          ? deadline
          : Deadline::In(left - std::min(left / 5, kToldBefore));
  absl::Status joined = Subscribe(device, options, early);
  if (joined.ok()) {
    joined = peer_.channel().Send(ring::kRingJoined, {}, {}, deadline);
    if (!joined.ok()) return joined;
    return platform::SendLifeline(peer_.channel(), deadline);
  }
  if (peer_.channel().is_open()) {
    protocol::SendError(peer_.channel(), protocol::kRefused, joined,
                        absl::InfinitePast())
        .IgnoreError();  // The hang-up says it otherwise.
  }
  return joined;
}

bool RingReader::State::HasPassed(Buffer& buffer, Deadline deadline,
                                  bool while_here) {
  std::function<bool()> gone;
  if (while_here) gone = [this] { return peer_.HasEnded(); };
  const absl::Status own = buffer.last.Await(deadline, gone);
  if (own.ok() || absl::IsDeadlineExceeded(own)) return own.ok();
  // This process's driver does not say. What the fences say is left.
  const FenceWatch watch = while_here ? peer_.Watch(false) : FenceWatch();
  return buffer.full.WaitOnHost(buffer.awaited, deadline, watch).ok() &&
         buffer.free.WaitOnHost(buffer.released, deadline, watch).ok();
}

bool RingReader::State::End() {
  // Not let go at once: what waits for contents would use what is no contents.
  Deadline deadline = Deadline::In(patience_);
  bool all_back = count_.has_value() && acquired_ == *count_;
  for (std::optional<Buffer>& buffer : buffers_) {
    if (!buffer.has_value()) continue;
    all_back &= !buffer->held;
    if (HasPassed(*buffer, deadline, /*while_here=*/true)) continue;
    LetGoOfWriter();
    deadline = Deadline::In(patience_);
    break;
  }
  bool passed = true;
  std::vector<Buffer*> unused;
  for (std::optional<Buffer>& buffer : buffers_) {
    if (!buffer.has_value()) continue;
    const bool done = HasPassed(*buffer, deadline, /*while_here=*/false);
    passed &= done;
    if (done || buffer->held) unused.push_back(&*buffer);
  }
  // First: the writer looks for that once it meets a fence that is abandoned, and
  // lets go of what this side never imported.
  peer_.Leave(passed);
  if (all_back) return passed;
  // The writer's streams would wait for ever. But of what this GPU still uses the
  // signal is on its way.
  for (Buffer* const buffer : unused) {
    buffer->full.Abandon().IgnoreError();
    buffer->free.Abandon().IgnoreError();
  }
  return passed;
}

absl::Status RingReader::State::Judge(const absl::Status& status,
                                      Deadline deadline) {
  if (absl::IsUnavailable(status)) {
    over_ = peer_.Gone(status, deadline);
    lost_ = peer_.has_ended() ? absl::OkStatus() : status;
    if (lost_.ok()) LetGoOfWriter();
    return over_;
  }
  if (absl::IsAborted(status)) {
    over_ = platform::Annotate(status, "the ring was let go");
    return over_;
  }
  if (absl::IsDataLoss(status)) over_ = status;
  return status;
}

absl::StatusOr<RingItem> RingReader::State::Next(Deadline deadline) {
  absl::StatusOr<platform::Message> message = peer_.Receive(deadline);
  if (!message.ok()) return message.status();
  if (message->type == ring::kRingItem) {
    absl::StatusOr<RingItem> item = DecodeRingItem(message->payload);
    if (item.ok()) return item;
    return absl::DataLossError(item.status().message());
  }
  if (message->type == ring::kRingEnd) {
    WireReader in(message->payload);
    count_ = in.Take<std::uint64_t>();
    if (!in.overrun() && in.left() == 0 && *count_ == acquired_) {
      return absl::OutOfRangeError(absl::StrCat(
          "the writer has finished the ring: there were ", *count_, " items"));
    }
    return absl::DataLossError(absl::StrCat("the writer ends the ring after ",
                                            *count_, " items; there came ",
                                            acquired_));
  }
  if (message->type == ring::kRingBye) {
    peer_.set_left();
    return absl::UnavailableError(
        "the writer has left the ring without finishing it");
  }
  if (message->type == ring::kRingLetGo) {
    return absl::AbortedError("the writer called LetGo()");
  }
  return absl::DataLossError(
      absl::StrCat("the writer sent a message of type 0x",
                   absl::Hex(message->type), ", which has no place here"));
}

absl::StatusOr<Buffer*> RingReader::State::BufferOf(const RingItem& item,
                                                    Deadline deadline) {
  if ((item.number - 1) / buffers_.size() + 1 != item.lap) {
    return NoItem(item,
                  absl::StrCat("in a ring of ", buffers_.size(), " buffers"));
  }
  std::optional<Buffer>& buffer = buffers_[(item.number - 1) % buffers_.size()];
  if (buffer.has_value()) {
    if (buffer->held || item.lap != buffer->acquired + 1) {
      return NoItem(
          item, absl::StrCat("after lap ", buffer->acquired, " of its buffer",
                             buffer->held ? ", which is in use" : ""));
    }
    if (item.block == buffer->item.block && item.full == buffer->item.full &&
        item.free == buffer->item.free) {
      return &*buffer;
    }
    return NoItem(item, "in another buffer than before");
  }
  if (item.lap != 1 || item.block.size != bytes_) {
    return NoItem(item,
                  absl::StrCat("as the first in a buffer of ", item.block.size,
                               " bytes; expected lap 1 "
                               "and ",
                               bytes_, " bytes"));
  }
  absl::StatusOr<ImportedBlock> block = pool_->Import(item.block, deadline);
  if (!block.ok()) return block.status();
  absl::StatusOr<Fence> full = fences_->Import(item.full, deadline);
  if (!full.ok()) return full.status();
  absl::StatusOr<Fence> free = fences_->Import(item.free, deadline);
  if (!free.ok()) return free.status();
  buffer.emplace(
      Buffer{*std::move(block), *std::move(full), *std::move(free), item});
  return &*buffer;
}

absl::StatusOr<RingBuffer> RingReader::State::Acquire(CUstream stream,
                                                      Deadline deadline) {
  if (!over_.ok()) return Over();
  if (count_.has_value()) {
    return absl::OutOfRangeError("the writer has finished the ring");
  }
  if (!pending_.has_value()) {
    absl::StatusOr<RingItem> item = Next(deadline);
    if (!item.ok()) return Judge(item.status(), deadline);
    pending_ = *item;
  }
  absl::StatusOr<Buffer*> buffer = BufferOf(*pending_, deadline);
  if (!buffer.ok()) return Judge(buffer.status(), deadline);
  absl::Status put = (*buffer)->full.Wait(stream, pending_->lap);
  if (put.ok()) {
    (*buffer)->awaited = pending_->lap;
    put = (*buffer)->last.Record(*driver_, stream);
  }
  if (!put.ok()) return Judge(put, deadline);
  (*buffer)->item = *pending_;
  (*buffer)->acquired = pending_->lap;
  (*buffer)->held = true;
  ++acquired_;
  const RingBuffer acquired{(*buffer)->block.address(), pending_->size,
                            pending_->tag, pending_->number};
  pending_.reset();
  return acquired;
}

Buffer* RingReader::State::Held(const RingBuffer& buffer) {
  std::optional<Buffer>& slot = buffers_[(buffer.number - 1) % buffers_.size()];
  const bool held = slot.has_value() && slot->held &&
                    slot->item.number == buffer.number &&
                    slot->block.address() == buffer.address;
  return held ? &*slot : nullptr;
}

absl::Status RingReader::State::Release(const RingBuffer& buffer,
                                        CUstream stream) {
  Buffer* const held = Held(buffer);
  if (held == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("item ", buffer.number,
                     " is not acquired from this ring, or released already"));
  }
  absl::Status put = held->free.Signal(stream, held->acquired);
  if (!put.ok()) return Judge(put, absl::InfinitePast());
  held->released = held->acquired;
  held->held = false;
  // The writer is told; whether this GPU is done only an own event tells.
  return held->last.Record(*driver_, stream);
}

absl::Status RingReader::State::AwaitContents(Buffer& buffer,
                                              Deadline deadline) {
  absl::Status there =
      buffer.full.WaitOnHost(buffer.acquired, deadline, peer_.Watch(false));
  if (there.ok()) return there;
  return Judge(platform::Annotate(
                   there, absl::StrCat("the contents of item ",
                                       buffer.item.number, " are not there")),
               deadline);
}

absl::Status RingReader::State::Await(const RingBuffer& buffer,
                                      Deadline deadline) {
  Buffer* const held = Held(buffer);
  if (held == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("item ", buffer.number, " is not acquired"));
  }
  return AwaitContents(*held, deadline);
}

absl::Status RingReader::State::Finish(Deadline deadline) {
  for (std::optional<Buffer>& buffer : buffers_) {
    if (!buffer.has_value()) continue;
    if (buffer->held) {
      return absl::FailedPreconditionError(
          absl::StrCat("item ", buffer->item.number, " is not released"));
    }
    absl::Status there = AwaitContents(*buffer, deadline);
    if (!there.ok()) return there;
    absl::Status passed = buffer->free.WaitOnHost(buffer->released, deadline);
    if (!passed.ok()) return Judge(passed, deadline);
  }
  return absl::OkStatus();
}

void RingReader::State::LetGo() {
  // First: the writer looks for that once it meets a fence that is abandoned.
  peer_.SayLetGo();
  for (std::optional<Buffer>& buffer : buffers_) {
    if (!buffer.has_value()) continue;
    buffer->full.Abandon().IgnoreError();
    buffer->free.Abandon().IgnoreError();
  }
  if (over_.ok()) over_ = absl::AbortedError("the ring was let go by LetGo()");
}

absl::StatusOr<std::unique_ptr<RingReader>> RingReader::Open(
    const Device& device, platform::Channel channel,
    const RingReaderOptions& options, Deadline deadline) {
  auto state = std::make_unique<State>(std::move(channel), options.patience);
  absl::Status joined = state->Join(device, options, deadline);
  if (!joined.ok()) return joined;
  return std::unique_ptr<RingReader>(new RingReader(std::move(state)));
}

RingReader::RingReader(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

RingReader::~RingReader() {
  if (state_->IsOfAnotherProcess() || !state_->End()) {
    platform::Abandon(std::move(state_));
  }
}

absl::StatusOr<RingBuffer> RingReader::Acquire(CUstream stream,
                                               Deadline deadline) {
  return state_->Acquire(stream, deadline);
}

absl::Status RingReader::Release(const RingBuffer& buffer, CUstream stream) {
  return state_->Release(buffer, stream);
}

absl::Status RingReader::Await(const RingBuffer& buffer, Deadline deadline) {
  return state_->Await(buffer, deadline);
}

absl::Status RingReader::Finish(Deadline deadline) {
  return state_->Finish(deadline);
}

void RingReader::LetGo() { state_->LetGo(); }

}  // namespace vmm
