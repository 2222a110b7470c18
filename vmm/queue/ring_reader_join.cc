// How a ring's reader joins and goes, and what looks after the writer meanwhile.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/queue/internal/ring_reader_state.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {

using ring::Buffer;

namespace {

// How long before the deadline a reader that cannot join gives up, at most.
constexpr absl::Duration kToldBefore = absl::Seconds(1);

}  // namespace

absl::Status RingReader::State::Subscribe(const Device& device,
                                          const RingReaderOptions& options,
                                          Deadline deadline) {
  absl::StatusOr<platform::Message> message = peer_.Receive(deadline);
  if (!message.ok()) {
    return platform::Annotate(message.status(), "no ring was offered");
  }
  if (message->type == ring::kRingBye) {
    return absl::UnavailableError(
        "the writer left before it offered a ring, because it could not make "
        "the buffers: the error of its RingWriter::Open() says why");
  }
  if (message->type != ring::kRingOffer) {
    return absl::DataLossError(
        absl::StrCat("a message of type 0x", absl::Hex(message->type),
                     " came where the offer of a ring was expected"));
  }
  ASSIGN_OR_RETURN(const ring::Offer offer,
                   ring::DecodeOffer(message->payload));
  RETURN_IF_ERROR(peer_.ReceiveLifeline(deadline));
  ASSIGN_OR_RETURN(std::unique_ptr<ImportedPool> pool,
                   ImportedPool::Subscribe(
                       device.driver(), offer.pool,
                       {.grants = {{Location::On(device), options.access}},
                        .host_access = options.host_access},
                       deadline, options.owners));
  ASSIGN_OR_RETURN(std::unique_ptr<ImportedFencePool> fences,
                   ImportedFencePool::Subscribe(device.driver(), offer.fences,
                                                {.devices = {device}}, deadline,
                                                options.owners));
  driver_ = device.driver();
  spare_.emplace(device);
  pool_ = std::move(pool);
  fences_ = std::move(fences);
  buffers_.resize(offer.buffers);
  bytes_ = offer.bytes;
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
    joined = peer_.LookAfter(watcher_, [this] { LookAfterWriter(); });
  }
  if (!joined.ok()) {
    if (peer_.channel().is_open()) {
      protocol::SendError(peer_.channel(), protocol::kRefused, joined,
                          absl::InfinitePast())
          .IgnoreError();  // The hang-up says it otherwise.
    }
    return joined;
  }
  RETURN_IF_ERROR(peer_.channel().Send(ring::kRingJoined, {}, {}, deadline));
  return platform::SendLifeline(peer_.channel(), deadline);
}

void RingReader::State::LookAfterWriter() {
  // What it says comes between its items, which are for Acquire().
  if (peer_.end_is_proven()) LetGoOfWriter();
}

void RingReader::State::LetGoOfWriter() {
  const platform::MutexLock lock(filling_);
  for (std::optional<Buffer>& buffer : buffers_) {
    if (!buffer.has_value()) continue;
    if (buffer->full.Query().ok()) buffer->let_go = true;
    buffer->full.Abandon().IgnoreError();
  }
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
  watcher_.Stop();  // Also where the rest is kept until this process ends.
  if (all_back) return passed;
  // The writer's streams would wait for ever. But of what this GPU still uses the
  // signal is on its way.
  for (Buffer* const buffer : unused) {
    buffer->full.Abandon().IgnoreError();
    buffer->free.Abandon().IgnoreError();
  }
  return passed;
}

absl::StatusOr<std::unique_ptr<RingReader>> RingReader::Open(
    const Device& device, platform::Channel channel,
    const RingReaderOptions& options, Deadline deadline) {
  auto state = std::make_unique<State>(std::move(channel), options.patience);
  RETURN_IF_ERROR(state->Join(device, options, deadline));
  return std::unique_ptr<RingReader>(new RingReader(std::move(state)));
}

RingReader::RingReader(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

RingReader::~RingReader() {
  if (state_->IsOfAnotherProcess() || !state_->End()) {
    platform::Abandon(std::move(state_));
  }
}

}  // namespace vmm
