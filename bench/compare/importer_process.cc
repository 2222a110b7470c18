#include "bench/compare/importer_process.h"

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/compare/calls.h"
#include "bench/compare/clock.h"
#include "bench/compare/gather.h"
#include "bench/compare/gpu.h"
#include "bench/compare/os.h"
#include "bench/compare/route.h"
#include "bench/compare/session.h"
#include "bench/compare/wire.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"

namespace bench::compare {
namespace {

using vmm::platform::Channel;
using vmm::platform::Message;

class Server {
 public:
  Server(Gpu& gpu, Channel channel, const Options& options)
      : gpu_(gpu),
        channel_(std::move(channel)),
        gather_(gpu),
        slow_import_ns_(options.slow_import_ns),
        slow_connect_ns_(options.slow_connect_ns) {}

  // Until the owner hangs up.
  absl::Status Serve() {
    for (;;) {
      absl::StatusOr<Message> message =
          channel_.Receive(absl::InfiniteFuture());
      const std::int64_t now = NowNs();
      if (absl::IsUnavailable(message.status())) return absl::OkStatus();
      if (!message.ok()) return message.status();
      if (message->type == kImport) {
        const auto found =
            sessions_.find(Reader(message->payload).Get<ImportHeader>().route);
        // Of one that is not open kFinish is told.
        if (found != sessions_.end()) found->second.Import(*message, now);
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
    for (auto& [route, session] : sessions_) status.Update(session.Close());
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
        return session.Finish(reader.Get<bool>(), answer);
      case kVerify:
        return session.Verify(answer);
      case kCloseAll: {
        answer->count = session.blocks().size();
        Meter meter;
        meter.Start();
        absl::Status closed = session.Close();
        meter.Stop();
        answer->wall_ns = meter.wall_ns;
        answer->process_ns = meter.process_ns;
        return closed;
      }
      case kShut: {
        const std::int64_t start = NowNs();
        absl::Status closed = session.Close();
        kept_ = std::move(session).TakeLists();
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
    // --slow_import and --slow_connect are of vmmshare's pool.
    const bool slowed = Routes()[route] == &routes::kPool;
    if (slowed) Spin(slow_connect_ns_);
    answer->wall_ns = static_cast<double>(NowNs() - start);
    sessions_.erase(route);
    sessions_.try_emplace(route, gpu_, gather_, std::move(importer),
                          slowed ? slow_import_ns_ : 0,
                          std::exchange(kept_, {}));
    return absl::OkStatus();
  }

  // Copies the route's first block, or local memory, to local memory.
  absl::Status Copy(const CopyRequest& request, Answer* answer) {
    const auto found = sessions_.find(request.route);
    if (request.local == 0 &&
        (found == sessions_.end() || found->second.blocks().empty())) {
      return absl::InternalError("there is no block to copy");
    }
    ASSIGN_OR_RETURN(CUdeviceptr to, Local(&local_to_, request.size));
    CUdeviceptr from = 0;
    if (request.local != 0) {
      ASSIGN_OR_RETURN(from, Local(&local_from_, request.size));
    } else {
      from = found->second.blocks()[0].block.address;
    }
    const std::int64_t start = NowNs();
    for (std::uint32_t i = 0; i < request.times; ++i) {
      RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemcpyDtoDAsync, to, from, request.size,
                                gpu_.stream()));
    }
    absl::Status done = gpu_.Synchronize();
    answer->wall_ns = static_cast<double>(NowNs() - start);
    if (!done.ok() || request.local != 0) return done;
    return gpu_.Verify({to, request.size, 0}, found->second.blocks()[0].word);
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
  Session::Lists kept_ = Session::Lists::Make();
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
