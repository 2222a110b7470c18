#include <windows.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_win.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/machine.h"
#include "platform/os/os_error.h"
#include "platform/os/security_win.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

// Clients that may wait to be accepted; more wait in their Connect().
constexpr std::size_t kBacklog = 16;

constexpr char kDirectory[] = "\\\\.\\pipe";

// An instance of the pipe that waits for its client, or has one. Its event is
// signalled when it has.
class Instance {
 public:
  static absl::StatusOr<std::unique_ptr<Instance>> Make(
      const std::wstring& name, void* descriptor, bool first) {
    ASSIGN_OR_RETURN(OsHandle event, MakeEvent());
    ASSIGN_OR_RETURN(OsHandle pipe,
                     CreatePipeInstance(name, descriptor, first));
    std::unique_ptr<Instance> instance(
        new Instance(std::move(pipe), std::move(event)));
    RETURN_IF_ERROR(instance->Begin());
    return instance;
  }
  ~Instance() {
    if (!pipe_.has_value() || !pending_) return;
    ::CancelIoEx(Raw(pipe_), &operation_);
    Finish();
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  std::intptr_t event() const { return event_.get(); }

  // Whether the wait for a client was begun anew. Windows takes it back when the
  // thread that began it ends, and the client that came meanwhile is there.
  bool BeginAgain() {
    DWORD size = 0;
    if (!pending_ ||
        ::GetOverlappedResult(Raw(pipe_), &operation_, &size,
                              /*wait=*/FALSE) != 0 ||
        ::GetLastError() != ERROR_OPERATION_ABORTED) {
      return false;
    }
    connected_ = 0;  // Look() may have taken the event for a client.
    // If that cannot be, there is no client to find behind the event.
    if (!Begin().ok()) ::SetEvent(Raw(event_));
    return true;
  }

  // Looks whether a client has come. connected() is when one was first seen.
  void Look() {
    if (connected_ == 0 &&
        ::WaitForSingleObject(Raw(event_), 0) == WAIT_OBJECT_0)
      connected_ = TimeOfDay();
  }
  std::uint64_t connected() const { return connected_; }

  // The pipe, when the event is signalled; nothing when connecting failed.
  OsHandle Take() && {
    if (pending_ && !Finish()) return OsHandle();
    return std::move(pipe_);
  }

 private:
  Instance(OsHandle pipe, OsHandle event)
      : pipe_(std::move(pipe)), event_(std::move(event)) {}

  absl::Status Begin() {
    operation_.hEvent = Raw(event_);
    if (::ConnectNamedPipe(Raw(pipe_), &operation_) != 0) {
      ::SetEvent(Raw(event_));
      return absl::OkStatus();
    }
    const DWORD error = ::GetLastError();
    pending_ = error == ERROR_IO_PENDING;
    if (pending_) return absl::OkStatus();
    // A client was faster; one may even have come and gone, which shows later.
    if (error == ERROR_PIPE_CONNECTED || error == ERROR_NO_DATA) {
      ::SetEvent(Raw(event_));
      return absl::OkStatus();
    }
    return OsError(static_cast<int>(error), "ConnectNamedPipe()");
  }

  bool Finish() {
    DWORD size = 0;
    pending_ = false;
    return ::GetOverlappedResult(Raw(pipe_), &operation_, &size,
                                 /*wait=*/TRUE) != 0;
  }

  OsHandle pipe_;
  OsHandle event_;
  OVERLAPPED operation_ = {};
  bool pending_ = false;
  std::uint64_t connected_ = 0;
};

}  // namespace

struct Listener::State {
  std::wstring name;
  LocalMemory descriptor;
  std::vector<std::unique_ptr<Instance>> instances;
};

absl::StatusOr<std::string> DefaultChannelDirectory() { return kDirectory; }

absl::StatusOr<Listener> Listener::Bind(const ListenerOptions& options,
                                        PeerPolicy policy) {
  if (!options.directory.empty() && options.directory != kDirectory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the directory \"", options.directory, "\" is not ", kDirectory,
        ", and on Windows all channels are there; leave it empty"));
  }
  ASSIGN_OR_RETURN(const std::string name,
                   options.name.empty() ? RandomName() : options.name);
  if (name.find_first_of("/\\") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the pipe's name \"", name, "\" must not have a directory part"));
  }
  const std::string address = absl::StrCat(kPipePrefix, "vmmshare-", name);
  ASSIGN_OR_RETURN(std::wstring wide, PipeName(address));
  ASSIGN_OR_RETURN(LocalMemory descriptor,
                   OwnerAndSystemOnly(policy.also_allowed, kPipeClientAccess));

  auto state = std::make_shared<State>();
  state->name = std::move(wide);
  state->descriptor = std::move(descriptor);
  for (std::size_t i = 0; i < kBacklog; ++i) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<Instance> instance,
        Instance::Make(state->name, state->descriptor.get(), /*first=*/i == 0));
    state->instances.push_back(std::move(instance));
  }
  Listener listener(OsHandle(), address, std::move(policy));
  listener.state_ = std::move(state);
  return listener;
}

Listener::Listener(OsHandle socket, std::string address, PeerPolicy policy)
    : socket_(std::move(socket)),
      address_(std::move(address)),
      policy_(std::move(policy)),
      owner_(ProcessMark()) {}

Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
// The pipe's name goes with its last instance.
Listener::~Listener() = default;

absl::StatusOr<Channel> Listener::Accept(Deadline deadline,
                                         const CancelEvent* cancel) {
  Check(state_ != nullptr, "this Listener was moved from");
  const std::string what = absl::StrCat("connection to ", address_);
  std::vector<std::unique_ptr<Instance>>& instances = state_->instances;
  for (;;) {
    std::vector<std::intptr_t> events;
    events.reserve(instances.size());
    for (const auto& instance : instances) events.push_back(instance->event());
    ASSIGN_OR_RETURN(const std::size_t ready,
                     WaitForHandles(events, deadline, CancelsOf(cancel), what));
    bool begun_again = false;
    for (const auto& instance : instances) {
      begun_again = instance->BeginAgain() || begun_again;
    }
    if (begun_again) continue;
    for (const auto& instance : instances) instance->Look();
    // There is always one more for the next client. If it cannot be made, the
    // one that waits goes on waiting.
    ASSIGN_OR_RETURN(std::unique_ptr<Instance> next,
                     Instance::Make(state_->name, state_->descriptor.get(),
                                    /*first=*/false));
    // Clients find the oldest instance first, and so does the wait.
    std::unique_ptr<Instance> taken = std::move(instances[ready]);
    instances.erase(instances.begin() + static_cast<std::ptrdiff_t>(ready));
    instances.push_back(std::move(next));
    const std::uint64_t connected = taken->connected();
    OsHandle pipe = std::move(*taken).Take();
    if (pipe.has_value()) {
      absl::StatusOr<Peer> client = ReadClient(pipe, connected);
      if (client.ok() && Admit(client->credentials).ok()) {
        return Channel::State::MakeChannel(std::move(pipe), *std::move(client),
                                           Channel::State::End::kServer);
      }
    }
    ++refused_;
    // However many are turned away, the caller's deadline holds.
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " by an allowed peer before the deadline"));
    }
  }
}

}  // namespace vmm::platform
