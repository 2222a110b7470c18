#include "vmm/c/ring.h"

#include <memory>
#include <utility>
#include <variant>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/queue/ring.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;
using vmm::c::StreamOf;

struct vmmshare_ring_home : vmm::c::Handle<vmm::c::HandleType::kRingHome> {
  explicit vmmshare_ring_home(std::shared_ptr<vmm::RingHome> made)
      : home(std::move(made)) {}
  const std::shared_ptr<vmm::RingHome> home;
};

struct vmmshare_ring : vmm::c::Handle<vmm::c::HandleType::kRing> {
  using Writer = std::unique_ptr<vmm::RingWriter>;
  using Reader = std::unique_ptr<vmm::RingReader>;
  explicit vmmshare_ring(std::shared_ptr<vmm::RingHome> from, Writer writer)
      : home(std::move(from)), end(std::move(writer)) {}
  explicit vmmshare_ring(Reader reader) : end(std::move(reader)) {}
  vmm::RingWriter* writer() {
    Writer* const found = std::get_if<Writer>(&end);
    return found == nullptr ? nullptr : found->get();
  }
  vmm::RingReader& reader() { return *std::get<Reader>(end); }

  // The writer goes before its home.
  const std::shared_ptr<vmm::RingHome> home;
  std::variant<Writer, Reader> end;
};

namespace {

// Of a vmmshare_ring_buffer in version 1.
constexpr std::size_t kBufferBytes = 40;

absl::StatusOr<vmm::RingBuffer> BufferOf(const vmmshare_ring_buffer* buffer) {
  RETURN_IF_ERROR(CheckGiven(buffer, "buffer"));
  ASSIGN_OR_RETURN(
      const vmmshare_ring_buffer given,
      vmm::c::ReadOptions(buffer, kBufferBytes, "vmmshare_ring_buffer"));
  return vmm::RingBuffer{given.address, given.size, given.tag, given.number};
}

}  // namespace

vmmshare_status vmmshare_ring_home_create(const vmmshare_device* device,
                                          const vmmshare_pool_options* options,
                                          vmmshare_ring_home** home,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(home, "home"));
    RETURN_IF_ERROR(Check(device));
    vmm::RingHomeOptions given;
    ASSIGN_OR_RETURN(given.pool, vmm::c::PoolOptionsOf(options));
    return Make(home, vmm::RingHome::Create(device->device, given));
  });
}

void vmmshare_ring_home_close(vmmshare_ring_home* home) { vmm::c::Close(home); }

vmmshare_status vmmshare_ring_open_writer(
    vmmshare_ring_home* home, vmmshare_channel* channel, std::uint32_t buffers,
    std::uint64_t bytes, std::int64_t timeout_ns, vmmshare_ring** ring,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (ring != nullptr) *ring = nullptr;
    RETURN_IF_ERROR(Check(channel));
    // Taken whatever follows.
    vmm::platform::Channel own = std::move(channel->channel);
    RETURN_IF_ERROR(CheckGiven(ring, "ring"));
    RETURN_IF_ERROR(Check(home));
    vmm::RingOptions options;
    options.buffers = buffers;
    options.bytes = bytes;
    ASSIGN_OR_RETURN(auto made,
                     vmm::RingWriter::Open(*home->home, std::move(own), options,
                                           vmm::c::DeadlineOf(timeout_ns)));
    *ring = new vmmshare_ring(home->home, std::move(made));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_ring_open_reader(const vmmshare_device* device,
                                          vmmshare_channel* channel,
                                          std::int32_t writable,
                                          std::int64_t timeout_ns,
                                          vmmshare_ring** ring,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (ring != nullptr) *ring = nullptr;
    RETURN_IF_ERROR(Check(channel));
    // Taken whatever follows.
    vmm::platform::Channel own = std::move(channel->channel);
    RETURN_IF_ERROR(CheckGiven(ring, "ring"));
    RETURN_IF_ERROR(Check(device));
    vmm::RingReaderOptions options;
    if (writable != 0) options.access = vmm::Access::kReadWrite;
    options.host_access = options.access;
    return Make(ring,
                vmm::RingReader::Open(device->device, std::move(own), options,
                                      vmm::c::DeadlineOf(timeout_ns)));
  });
}

void vmmshare_ring_close(vmmshare_ring* ring) { vmm::c::Close(ring); }

vmmshare_status vmmshare_ring_acquire(vmmshare_ring* ring, void* stream,
                                      std::int64_t timeout_ns,
                                      vmmshare_ring_buffer* buffer,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(ring));
    RETURN_IF_ERROR(vmm::c::CheckResult(buffer, kBufferBytes,
                                        "vmmshare_ring_buffer", "buffer"));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    vmm::RingWriter* const writer = ring->writer();
    ASSIGN_OR_RETURN(const vmm::RingBuffer got,
                     writer != nullptr
                         ? writer->Acquire(StreamOf(stream), deadline)
                         : ring->reader().Acquire(StreamOf(stream), deadline));
    vmm::c::WriteResult({0, got.address, got.size, got.tag, got.number},
                        buffer);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_ring_pass(vmmshare_ring* ring,
                                   const vmmshare_ring_buffer* buffer,
                                   void* stream, std::int64_t timeout_ns,
                                   vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(ring));
    ASSIGN_OR_RETURN(const vmm::RingBuffer given, BufferOf(buffer));
    vmm::RingWriter* const writer = ring->writer();
    if (writer == nullptr) {
      return ring->reader().Release(given, StreamOf(stream));
    }
    return writer->Publish(given, StreamOf(stream),
                           vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_ring_await(vmmshare_ring* ring,
                                    const vmmshare_ring_buffer* buffer,
                                    std::int64_t timeout_ns,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(ring));
    ASSIGN_OR_RETURN(const vmm::RingBuffer given, BufferOf(buffer));
    if (ring->writer() != nullptr) {
      return absl::FailedPreconditionError(
          "this is the writer's end of the ring, to which no contents come. "
          "Call it for the reader's.");
    }
    return ring->reader().Await(given, vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_ring_finish(vmmshare_ring* ring,
                                     std::int64_t timeout_ns,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(ring));
    const vmm::Deadline deadline = vmm::c::DeadlineOf(timeout_ns);
    vmm::RingWriter* const writer = ring->writer();
    return writer != nullptr ? writer->Finish(deadline)
                             : ring->reader().Finish(deadline);
  });
}

vmmshare_status vmmshare_ring_abort(vmmshare_ring* ring,
                                    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(ring));
    if (vmm::RingWriter* const writer = ring->writer()) {
      writer->LetGo();
    } else {
      ring->reader().LetGo();
    }
    return absl::OkStatus();
  });
}
