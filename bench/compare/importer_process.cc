#include "bench/compare/importer_process.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/compare/calls.h"
#include "bench/compare/clock.h"
#include "bench/compare/gather.h"
#include "bench/compare/gpu.h"
#include "bench/compare/os.h"
#include "bench/compare/route.h"
#include "bench/compare/wire.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"

namespace bench::compare {
namespace {

using vmm::platform::Channel;
using vmm::platform::Message;
using vmm::platform::OsHandle;

struct Imported {
  Block block;
  std::uint32_t word = 0;
};

// The importer's half of a route, and what came by it.
struct Session {
  std::unique_ptr<Importer> importer;
  std::vector<Imported> blocks;
  absl::Status status;  // The first error of the batches.
  Meter meter;
  Figures so_far;  // Of the batches: transport, calls and steps.
  std::vector<double> lots;
};

// What a session's lists have room for.
constexpr std::size_t kBlocks = 32 << 10;
constexpr std::size_t kLots = 4 << 10;

// Takes that long, of wall time and of CPU time.
void Spin(double ns) {
  const std::int64_t start = NowNs();
  while (static_cast<double>(NowNs() - start) < ns) {
  }
}

class Server {
 public:
  Server(Gpu& gpu, Channel channel, const Options& options)
      : gpu_(gpu),
        channel_(std::move(channel)),
        gather_(gpu),
        slow_import_ns_(options.slow_import_ns),
        slow_connect_ns_(options.slow_connect_ns),
        kept_blocks_(kBlocks),
        kept_lots_(kLots) {
    kept_blocks_.clear();
    kept_lots_.clear();
  }

  // Until the owner hangs up.
  absl::Status Serve() {
    for (;;) {
      absl::StatusOr<Message> message =
          channel_.Receive(absl::InfiniteFuture());
      const std::int64_t now = NowNs();
      if (absl::IsUnavailable(message.status())) return absl::OkStatus();
      if (!message.ok()) return message.status();
      if (message->type == kImport) {
        Import(*message, now);
        continue;
      }
      Answer answer;
      const absl::Status status = Handle(*message, &answer);
      answer.done_at = NowNs();
      absl::Status sent = SendAnswer(channel_, status, answer);
      if (absl::IsUnavailable(sent)) return absl::OkStatus();
      if (!sent.ok()) return sent;
    }
  }

  absl::Status CloseAll() {
    absl::Status status;
    for (auto& [route, session] : sessions_) status.Update(Close(session));
    sessions_.clear();
    return status;
  }

 private:
  absl::Status Handle(Message& message, Answer* answer) {
    Reader reader(message.payload);
    if (message.type == kUsage) {
      answer->usage = {AddressSpaceBytes(), OpenHandles()};
      answer->process_ns = static_cast<double>(ProcessCpuNs());
      return absl::OkStatus();
    }
    if (message.type == kCopy) return Copy(reader.Get<CopyRequest>(), answer);
    const auto route = reader.Get<std::uint32_t>();
    if (message.type == kOpen) {
      Introduction owner;
      const absl::Span<const std::uint8_t> bytes = reader.GetBytes();
      owner.bytes.assign(bytes.begin(), bytes.end());
      owner.handles = std::move(message.handles);
      return Open(route, owner, answer);
    }
    const auto found = sessions_.find(route);
    if (found == sessions_.end() || !reader.ok()) {
      return absl::InternalError(absl::StrCat("message ", message.type,
                                              " for route ", route,
                                              ", which is not open"));
    }
    Session& session = found->second;
    switch (message.type) {
      case kFinish:
        return Finish(session, reader.Get<bool>(), answer);
      case kVerify:
        return Verify(session, answer);
      case kCloseAll: {
        answer->count = session.blocks.size();
        Meter meter;
        meter.Start();
        absl::Status closed = Close(session);
        meter.Stop();
        answer->wall_ns = meter.wall_ns;
        answer->process_ns = meter.process_ns;
        return closed;
      }
      case kShut: {
        const std::int64_t start = NowNs();
        absl::Status closed = Close(session);
        session.blocks.swap(kept_blocks_);
        session.lots.swap(kept_lots_);
        sessions_.erase(found);
        answer->wall_ns = static_cast<double>(NowNs() - start);
        return closed;
      }
      default:
        return absl::InternalError(
            absl::StrCat("message ", message.type, " is not known"));
    }
  }

  absl::Status Open(std::uint32_t route, const Introduction& owner,
                    Answer* answer) {
    if (route >= Routes().size()) {
      return absl::InternalError(absl::StrCat("no route ", route));
    }
    const std::int64_t start = NowNs();
    ASSIGN_OR_RETURN(std::unique_ptr<Importer> importer,
                     Routes()[route]->import(gpu_));
    RETURN_IF_ERROR(importer->Meet(owner));
    if (slow_connect_ns_ > 0 && IsSlowed(route)) Spin(slow_connect_ns_);
    answer->wall_ns = static_cast<double>(NowNs() - start);
    Session& session = sessions_[route];
    session = Session{};
    session.importer = std::move(importer);
    session.blocks.swap(kept_blocks_);
    session.blocks.reserve(kBlocks);
    session.lots.swap(kept_lots_);
    session.lots.reserve(kLots);
    return absl::OkStatus();
  }

  // A batch. The clocks are read around it and around each lot of blocks, so
  // that reading them costs little beside a block.
  void Import(Message& message, std::int64_t received_at) {
    Reader reader(message.payload);
    const auto header = reader.Get<ImportHeader>();
    Session& session = sessions_[header.route];
    session.so_far.transport_ns =
        static_cast<double>(received_at - header.sent_at);
    if (!session.status.ok()) return;
    std::size_t next_handle = 0;
    const bool alone = header.options.alone;
    const bool counts = header.options.count_calls;
    Steps* const steps =
        header.options.with_steps ? &session.so_far.steps : nullptr;
    CallCounter counter(counts ? &session.so_far.calls : nullptr);
    session.meter.Start();
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
      session.status.Update(counter.Count([&] {
        return alone ? ImportOne(*session.importer, lot[0], steps, &blocks[0])
                     : session.importer->ImportLot(
                           absl::MakeSpan(lot.data(), count), steps,
                           absl::MakeSpan(blocks.data(), count));
      }));
      if (slow_import_ns_ > 0 && IsSlowed(header.route)) {
        Spin(slow_import_ns_ * count);
      }
      const std::int64_t imported_at = alone ? NowNs() : 0;
      if (!session.status.ok()) break;
      for (std::uint32_t i = 0; i < count; ++i) {
        session.blocks.push_back({blocks[i], words[i]});
      }
      const std::int64_t now = alone ? imported_at : NowNs();
      session.lots.push_back(static_cast<double>(now - lot_start) / count);
      lot_start = now;
      left -= count;
    }
    session.meter.Stop();
    if (!reader.ok()) session.status = absl::InternalError("a batch was cut");
  }

  static absl::Status ImportOne(Importer& importer, Incoming& in, Steps* steps,
                                Block* out) {
    ASSIGN_OR_RETURN(*out, importer.Import(std::move(in), steps));
    return absl::OkStatus();
  }

  // --slow_import and --slow_connect are of vmmshare's pool.
  static bool IsSlowed(std::uint32_t route) {
    return Routes()[route] == &routes::kPool;
  }

  absl::Status Finish(Session& session, bool touch, Answer* answer) {
    if (!session.status.ok()) return session.status;
    static_cast<Figures&>(*answer) = std::exchange(session.so_far, {});
    answer->count = session.blocks.size();
    answer->wall_ns = session.meter.wall_ns;
    answer->process_ns = session.meter.process_ns;
    answer->lots = session.lots;
    if (touch) {
      const std::int64_t start = NowNs();
      RETURN_IF_ERROR(Touch(session));
      answer->touch_ns = static_cast<double>(NowNs() - start);
      answer->steps.Add(Step::kTouch, answer->touch_ns);
    }
    session.meter = Meter{};
    session.lots.clear();
    return absl::OkStatus();
  }

  absl::Status Touch(const Session& session) {
    if (session.blocks.size() == 1) return gpu_.Touch(session.blocks[0].block);
    std::vector<CUdeviceptr> addresses;
    addresses.reserve(session.blocks.size());
    for (const Imported& imported : session.blocks) {
      addresses.push_back(imported.block.address);
    }
    return gather_.ReadOneWordOfEach(addresses);
  }

  absl::Status Verify(const Session& session, Answer* answer) {
    answer->count = session.blocks.size();
    for (std::size_t i = 0; i < session.blocks.size(); ++i) {
      const Imported& imported = session.blocks[i];
      const absl::Status right = gpu_.Verify(imported.block, imported.word);
      if (!right.ok()) {
        return vmm::platform::Annotate(right, absl::StrCat("block ", i));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Close(Session& session) {
    absl::Status status;
    for (const Imported& imported : session.blocks) {
      status.Update(session.importer->Close(imported.block));
    }
    session.blocks.clear();
    return status;
  }

  // Copies the route's first block, or local memory, to local memory.
  absl::Status Copy(const CopyRequest& request, Answer* answer) {
    const auto found = sessions_.find(request.route);
    if (request.local == 0 &&
        (found == sessions_.end() || found->second.blocks.empty())) {
      return absl::InternalError("there is no block to copy");
    }
    ASSIGN_OR_RETURN(CUdeviceptr to, Local(&local_to_, request.size));
    CUdeviceptr from = 0;
    if (request.local != 0) {
      ASSIGN_OR_RETURN(from, Local(&local_from_, request.size));
    } else {
      from = found->second.blocks[0].block.address;
    }
    const std::int64_t start = NowNs();
    for (std::uint32_t i = 0; i < request.times; ++i) {
      RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemcpyDtoDAsync, to, from, request.size,
                                gpu_.stream()));
    }
    absl::Status done = gpu_.Synchronize();
    answer->wall_ns = static_cast<double>(NowNs() - start);
    if (!done.ok() || request.local != 0) return done;
    return gpu_.Verify({to, request.size, 0}, found->second.blocks[0].word);
  }

  // Local memory of `size` bytes, made on first use.
  absl::StatusOr<CUdeviceptr> Local(Block* local, std::uint64_t size) {
    if (local->size == size) return local->address;
    if (local->size != 0) gpu_.cu().cuMemFree(local->address);
    *local = {};
    CUdeviceptr address = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemAlloc, &address, size));
    *local = {address, size, 0};
    return address;
  }

  Gpu& gpu_;
  Channel channel_;
  Gather gather_;
  const double slow_import_ns_;
  const double slow_connect_ns_;
  std::map<std::uint32_t, Session> sessions_;
  // The empty lists of the session before: their memory was used, so that no
  // import waits for the kernel to make it.
  std::vector<Imported> kept_blocks_;
  std::vector<double> kept_lots_;
  Block local_to_;
  Block local_from_;
};

}  // namespace

absl::Status RunImporter(const Options& options) {
  ASSIGN_OR_RETURN(vmm::platform::Driver driver, LoadDriver(options.driver));
  ASSIGN_OR_RETURN(vmm::platform::Driver counting, CountingDriver(driver));
  ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu,
                   Gpu::Open(counting, options.device, options.at));
  std::optional<Channel> observer;
  if (!options.linger.empty()) {
    ASSIGN_OR_RETURN(observer,
                     Channel::Connect(options.linger, {}, Deadline()));
  }
  ASSIGN_OR_RETURN(Channel channel,
                   Channel::Connect(options.connect, {}, Deadline()));
  Server server(*gpu, std::move(channel), options);
  absl::Status served = server.Serve();
  if (!observer.has_value()) return served;
  served.Update(server.CloseAll());
  if (served.ok()) served = observer->WaitForHangUp(absl::InfiniteFuture());
  return served;
}

}  // namespace bench::compare
