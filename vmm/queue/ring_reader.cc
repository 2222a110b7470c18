// The consumer's side of a ring.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/internal/ring_reader_state.h"

namespace vmm {

using ring::Buffer;

namespace {

absl::Status NoItem(const RingItem& item, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("the writer sent item ", item.number,
                                          " of lap ", item.lap, ", ", why));
}

}  // namespace

absl::Status RingReader::State::Judge(const absl::Status& status,
                                      Deadline deadline) {
  if (absl::IsUnavailable(status)) {
    over_ = peer_.Gone(status, deadline, &lost_);
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
  ASSIGN_OR_RETURN(const platform::Message message, peer_.Receive(deadline));
  if (message.type == ring::kRingItem) {
    absl::StatusOr<RingItem> item = DecodeRingItem(message.payload);
    if (item.ok()) return item;
    return absl::DataLossError(item.status().message());
  }
  if (message.type == ring::kRingEnd) {
    WireReader in(message.payload);
    count_ = in.Take<std::uint64_t>();
    if (!in.overrun() && in.left() == 0 && *count_ == acquired_) {
      return absl::OutOfRangeError(absl::StrCat(
          "the writer has finished the ring: there were ", *count_, " items"));
    }
    return absl::DataLossError(absl::StrCat("the writer ends the ring after ",
                                            *count_, " items; there came ",
                                            acquired_));
  }
  absl::Status said = peer_.Judge(message);
  if (!absl::IsUnavailable(said)) return said;
  return absl::UnavailableError(
      absl::StrCat(said.message(), " without finishing it"));
}

absl::StatusOr<Buffer*> RingReader::State::BufferOf(const RingItem& item,
                                                    Deadline deadline) {
  if ((item.number - 1) / buffers_.size() + 1 != item.lap) {
    return NoItem(item,
                  absl::StrCat("in a ring of ", buffers_.size(), " buffers"));
  }
  std::optional<Buffer>& buffer = buffers_[(item.number - 1) % buffers_.size()];
  if (buffer.has_value()) {
    if (item.lap != buffer->acquired + 1) {
      return NoItem(
          item, absl::StrCat("after lap ", buffer->acquired, " of its buffer",
                             buffer->held ? ", which is in use" : ""));
    }
    if (item.block != buffer->item.block || item.full != buffer->item.full ||
        item.free != buffer->item.free) {
      return NoItem(item, "in another buffer than before");
    }
    // The writer may be so far ahead: its stream waits until it is given back.
    if (buffer->held) {
      return absl::FailedPreconditionError(absl::StrCat(
          "item ", buffer->item.number, " is acquired and not released; item ",
          item.number, ", which has come, has the same buffer. Release item ",
          buffer->item.number, ", and acquire again"));
    }
    return &*buffer;
  }
  if (item.lap != 1 || item.block.size != bytes_) {
    return NoItem(
        item, absl::StrCat("as the first in a buffer of ", item.block.size,
                           " bytes; expected lap 1 and ", bytes_, " bytes"));
  }
  ASSIGN_OR_RETURN(ImportedBlock block, pool_->Import(item.block, deadline));
  ASSIGN_OR_RETURN(Fence full, fences_->Import(item.full, deadline));
  ASSIGN_OR_RETURN(Fence free, fences_->Import(item.free, deadline));
  const platform::MutexLock lock(filling_);
  buffer.emplace(
      Buffer{std::move(block), std::move(full), std::move(free), item});
  return &*buffer;
}

absl::StatusOr<RingBuffer> RingReader::State::Acquire(CUstream stream,
                                                      Deadline deadline) {
  RETURN_IF_ERROR(Over(deadline));
  if (count_.has_value()) {
    return absl::OutOfRangeError("the writer has finished the ring");
  }
  if (!pending_.has_value()) {
    absl::StatusOr<RingItem> item = Next(deadline);
    if (!item.ok()) return Judge(item.status(), deadline);
    pending_ = *item;
  }
  // Not before: who only looks whether one has come asks no driver.
  ASSIGN_OR_RETURN(const CurrentContext current, spare_->EnterFor(stream));
  RETURN_IF_ERROR(ring::CheckMayAcquire(*driver_, stream));
  absl::StatusOr<Buffer*> buffer = BufferOf(*pending_, deadline);
  if (!buffer.ok()) return Judge(buffer.status(), deadline);
  absl::Status put = (*buffer)->full.Wait(stream, pending_->lap);
  if (put.ok()) {
    (*buffer)->awaited = pending_->lap;
    put = (*buffer)->last.Record(*driver_, stream);
    if (!put.ok()) (*buffer)->last.Lose();  // The stream waits all the same.
  }
  if (!put.ok()) return Judge(OfFull(**buffer, put), deadline);
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
  ASSIGN_OR_RETURN(const CurrentContext current, spare_->EnterFor(stream));
  // The writer is told; whether this GPU is done only an own event tells. First:
  // without one the buffer is not given back.
  RETURN_IF_ERROR(held->last.Record(*driver_, stream));
  absl::Status put = held->free.Signal(stream, held->acquired);
  if (!put.ok()) return Judge(put, absl::InfinitePast());
  held->released = held->acquired;
  held->held = false;
  // The signal uses the fence's memory. Where that cannot be recorded it is given
  // back all the same; what the fence says tells then.
  held->last.Extend(*driver_, stream);
  return absl::OkStatus();
}

absl::Status RingReader::State::OfFull(const Buffer& buffer,
                                       const absl::Status& status) {
  if (!absl::IsAborted(status)) return status;
  const platform::MutexLock lock(filling_);
  return buffer.let_go ? absl::UnavailableError(status.message()) : status;
}

absl::Status RingReader::State::AwaitContents(Buffer& buffer,
                                              Deadline deadline) {
  absl::Status there =
      buffer.full.WaitOnHost(buffer.acquired, deadline, peer_.Watch(false));
  if (there.ok()) return there;
  return Judge(
      platform::Annotate(OfFull(buffer, there),
                         absl::StrCat("the contents of item ",
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
    RETURN_IF_ERROR(AwaitContents(*buffer, deadline));
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
  if (over_.ok()) over_ = ring::LetGoHere();
}

absl::StatusOr<RingBuffer> RingReader::Acquire(CUstream stream,
                                               Deadline deadline) {
  RETURN_IF_ERROR(ring::CheckStream(stream));
  return state_->Acquire(stream, deadline);
}

absl::Status RingReader::Release(const RingBuffer& buffer, CUstream stream) {
  RETURN_IF_ERROR(ring::CheckStream(stream));
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
