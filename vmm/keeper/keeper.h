// KeeperClient: memory under a name, held by the keeper, so that it outlives
// the process that created it.
//
//   // The first engine loads the weights; the next ones find them.
//   absl::StatusOr<KeeperClient> keeper = KeeperClient::Connect({}, deadline);
//   auto weights = keeper->AttachOrCreate(
//       "llama/tp0", size, driver, {.until_sealed = true},
//       [&] { return Allocation::Create(device, {.size = size}); }, deadline);
//   if (weights->outcome != KeptMemoryFrom::kAttached) {
//     ... fill weights->address() ...
//     absl::Status sealed = keeper->Seal("llama/tp0", deadline);
//   }
//
// The keeper is `vmmshare keep`, a process without a CUDA context and without a
// CUDA driver: it holds descriptors (on Windows NT handles), and each is a
// reference to the memory. Start it before those that use it.
//
// What the keeper says is a rule among honest programs. A handle gives whole
// access in the driver: sealing and the writer lock keep programs from
// mistakes, not an attacker from the memory. Who may connect at all is decided
// by PeerPolicy, and whoever may can attach everything that is kept.
#ifndef VMMSHARE_VMM_KEEPER_KEEPER_H_
#define VMMSHARE_VMM_KEEPER_KEEPER_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"

namespace vmm {
namespace keeper {
struct Request;
}  // namespace keeper
enum class Busy;

// Where a keeper listens unless told otherwise: "keeper-UID", on Windows
// "keeper-SID", in platform::DefaultChannelDirectory(). Errors as that. systemd's
// unit names another place: docs/keeper.md.
absl::StatusOr<std::string> DefaultKeeperAddress();

struct KeeperClientOptions {
  std::string address = {};           // Empty: DefaultKeeperAddress().
  platform::PeerPolicy keepers = {};  // Whose keeper it may be.
};

enum class KeptState : std::uint8_t {
  kReserved = 1,  // A client creates it at this moment.
  kWritable = 2,  // Kept; nobody has the writer lock.
  kLocked = 3,    // Kept; `holder_pid` has the writer lock.
  kSealed = 4,    // Kept, and read-only from now on.
};
absl::string_view NameOf(KeptState state);

// One line of the keeper's list. A value.
struct KeptMemory {
  std::string name;
  KeptState state = KeptState::kReserved;
  platform::UserId user;        // Who put it, or has it reserved.
  std::int64_t pid = 0;         // For messages; 0 when in a hidden namespace.
  platform::UserId holder;      // Who has the writer lock, if somebody has.
  std::int64_t holder_pid = 0;  // The same.
  absl::Time since = absl::UnixEpoch();  // Put, or reserved; whole us.
  // The rest is 0 while the name is reserved.
  std::uint64_t size = 0;            // Bytes that were asked for.
  std::uint64_t allocated_size = 0;  // Bytes that are held.
  std::uint32_t chunks = 0;          // Handles that are held.
  std::uint64_t attached = 0;        // How often, since this keeper started.
  HandleKind kind = HandleKind::kPosixFd;
  DeviceUuid device;                            // That it was created with.
  std::optional<std::uint32_t> host_numa_node;  // Of memory of the host.
  // Whether the keeper has it again after a restart.
  bool survives_restart = false;
  // Whether it lives on without its creator. Fabric handles are bytes that hold
  // nothing: memory that was created for them alone goes with its creator.
  bool outlives_creator() const { return kind != HandleKind::kFabric; }
  friend bool operator==(const KeptMemory&, const KeptMemory&) = default;
};

struct KeeperListing {
  std::vector<KeptMemory> memory;  // By name.
  // Why nothing survives a restart of the keeper; empty when it does.
  std::string restart_note;
};

struct AttachOptions {
  // Read-only by default. Asking for Access::kReadWrite of sealed memory is an
  // error.
  ImportOptions import = {};
  // Bytes that the creator must have asked for; 0: any.
  std::uint64_t expected_size = 0;
};

struct AttachOrCreateOptions {
  ImportOptions import = {};
  // Others wait until the memory is sealed, not only until it is put: they see
  // it complete or not at all.
  bool until_sealed = false;
};

enum class KeptMemoryFrom {
  kAttached,  // Another process put it.
  kCreated,   // This call did. The connection has the writer lock.
  // Another process put it and ended before it sealed it (only with
  // until_sealed). The connection has the writer lock now and the memory is
  // mapped for writing: what is in it is not complete. Fill and seal it.
  kTakenOver,
};

// What AttachOrCreate() returns. Move-only.
struct AttachedOrCreated {
  KeptMemoryFrom outcome = KeptMemoryFrom::kAttached;
  std::optional<Allocation> created;           // With kCreated,
  std::optional<ImportedAllocation> attached;  // otherwise this.
  CUdeviceptr address() const {
    return created.has_value() ? created->address() : attached->address();
  }
  std::uint64_t requested_size() const {
    return created.has_value() ? created->requested_size()
                               : attached->requested_size();
  }
};

// One connection to a keeper. Move-only, thread-compatible: one call at a time.
// A second thread that may have to wait takes a connection of its own.
//
// The connection carries the writer locks and the reservation that its calls
// gained. Both go when it is destroyed: call Unlock(), or let it go, when
// nothing of this process writes to the memory any more, the GPU included. An
// error after which the connection cannot be used leaves it its locks until then.
//
// When the connection ends otherwise, by the process's death or because the system
// or the keeper breaks it, the reservation goes and the locks stay with the process.
// They go once the end of the process is proven (a child made by fork() may have its
// GPU context), or when another connection of the process has taken them by Lock()
// and lets go. Where the keeper cannot refer to the process (Linux before 5.3;
// before 6.5 one in a hidden namespace), locks go with the connection. What is
// attached stays.
//
// Every call takes a deadline. Common errors of all:
//   INVALID_ARGUMENT     a name that is not 1 to 128 of [A-Za-z0-9._/-]
//   DEADLINE_EXCEEDED    the keeper did not answer in time; nothing more can be
//                        asked over the connection, and the call may or may not
//                        have had its effect
//   UNAVAILABLE          the keeper has ended, or this connection is closed
//   DATA_LOSS            the keeper broke the protocol; the connection is
//                        closed
class KeeperClient {
 public:
  // NOT_FOUND when no keeper listens there; PERMISSION_DENIED when it is not an
  // allowed user's. When the keeper has no room for another connection, the
  // first call connects anew until its deadline and then returns
  // RESOURCE_EXHAUSTED; with an infinite one it returns that at once. The keeper
  // hangs up on whoever asks for nothing within 5 s, so connect when the memory
  // is there to be put.
  static absl::StatusOr<KeeperClient> Connect(
      const KeeperClientOptions& options, Deadline deadline);

  // Hands exported handles of `memory` to the keeper. Afterwards this
  // connection has the writer lock.
  //   ALREADY_EXISTS       the name is taken
  //   RESOURCE_EXHAUSTED   the keeper is full, or the user's quota is; the
  //                        message has the figures
  //   FAILED_PRECONDITION  private memory; memory of a weaker kind, which ends with
  //                        its owner (driver_block.h); or of another machine than
  //                        the keeper's
  //   UNIMPLEMENTED        a keeper that is older than this
  //   INVALID_ARGUMENT     memory of more than 65,536 chunks
  absl::Status Put(absl::string_view name, const Shareable& memory,
                   Deadline deadline);

  // Puts `memory` under the name, complete and sealed, in place of the sealed
  // memory `replaced` (ImportedAllocation::ticket().id), or where nothing is
  // kept, if that is none. One step: whoever attaches gets the old memory or the
  // new. Who has the old one attached keeps it; it is freed when the last one
  // lets go. The keeper has room for both. The contents must be there: nothing
  // gives this connection the writer lock.
  //   ABORTED              another memory than `replaced` is kept: attach that,
  //                        and begin again from it
  //   NOT_FOUND            nothing is kept, and something was to be replaced
  //   ALREADY_EXISTS       something is kept, and nothing was to be replaced
  //   FAILED_PRECONDITION  what is kept is not sealed; else as Put()
  //   PERMISSION_DENIED    another user put what is kept, and this one is not
  //                        the keeper's
  //   RESOURCE_EXHAUSTED, UNIMPLEMENTED  as Put()
  //   INVALID_ARGUMENT     a keeper that is too old for it; else as Put()
  absl::Status Replace(absl::string_view name, const Shareable& memory,
                       const std::optional<MemoryId>& replaced,
                       Deadline deadline);

  // Imports and maps what is kept under `name`.
  //   NOT_FOUND            nothing is kept under it
  //   FAILED_PRECONDITION  another size than expected; to be mapped for
  //                        writing, and sealed
  //   else                 as ImportedAllocation::Open
  absl::StatusOr<ImportedAllocation> Attach(absl::string_view name,
                                            const platform::Driver& driver,
                                            const AttachOptions& options,
                                            Deadline deadline);

  // The memory under `name`, put there by whoever comes first: of all processes
  // that call this, one gets to call `create` and puts what it makes; the
  // others wait until it is put, or sealed. When the creator ends first, or
  // `create` fails, the next one creates.
  //
  // `create` runs in this thread, at most once, and may take its time: the
  // reservation has no limit but the deadline. Without until_sealed it should
  // fill the memory before it returns, for others attach it then. What it throws goes
  // on to the caller, and the next one creates.
  //   INVALID_ARGUMENT     size 0; until_sealed, and to be mapped for writing;
  //                        `create` made memory of another size
  //   FAILED_PRECONDITION  what is kept has another size; is sealed, and to be
  //                        mapped for writing; is to be sealed, or put, by this
  //                        connection itself
  //   DEADLINE_EXCEEDED    another process still creates; says which
  //   else                 as Put() and Attach(), or what `create` returned
  absl::StatusOr<AttachedOrCreated> AttachOrCreate(
      absl::string_view name, std::uint64_t size,
      const platform::Driver& driver, const AttachOrCreateOptions& options,
      const std::function<absl::StatusOr<Allocation>()>& create,
      Deadline deadline);

  // Takes the writer lock, waiting for whoever has it; with a deadline that has
  // passed it looks once, and the answer may take up to a second. OK when this
  // connection has it already. The lock is among those who ask for it: nobody is kept from
  // mapping for writing without.
  //   NOT_FOUND            nothing is kept under the name
  //   FAILED_PRECONDITION  sealed: nobody is to write any more
  //   DEADLINE_EXCEEDED    says the holder's process and user; the connection
  //                        stays usable
  absl::Status Lock(absl::string_view name, Deadline deadline);
  // FAILED_PRECONDITION when this connection does not have the lock; NOT_FOUND when
  // nothing is kept under the name.
  absl::Status Unlock(absl::string_view name, Deadline deadline);

  // Read-only from now on, for ever; gives the writer lock back. Only by the
  // writer (FAILED_PRECONDITION); NOT_FOUND when nothing is kept under the name.
  // Mappings for writing that there are stay: sealing says that the contents are
  // complete.
  absl::Status Seal(absl::string_view name, Deadline deadline);

  // Everything kept, by name.
  absl::StatusOr<KeeperListing> List(Deadline deadline);

  // The keeper forgets `name`. Who has it attached keeps it; the memory is
  // freed when the last one lets go. By the user who put it, or the keeper's
  // own (PERMISSION_DENIED). NOT_FOUND when nothing is kept under it.
  absl::Status Drop(absl::string_view name, Deadline deadline);

  bool is_open() const {
    return channel_ != nullptr && !is_behind_ && channel_->is_open();
  }

 private:
  // Says goodbye, but in a forked child, whose connection it is not.
  struct Leave {
    platform::MadeHere made;
    void operator()(platform::Channel* channel) const;
  };
  using Connection = std::unique_ptr<platform::Channel, Leave>;

  KeeperClient(KeeperClientOptions options, Connection channel)
      : options_(std::move(options)), channel_(std::move(channel)) {}
  static absl::StatusOr<Connection> Dial(const KeeperClientOptions& options,
                                         Deadline deadline);

  // The keeper's answer, if that is no error.
  absl::StatusOr<platform::Message> Ask(const keeper::Request& request,
                                        Deadline deadline);
  // The same, errors included. `busy` is kNo and set when the keeper has no room.
  absl::StatusOr<platform::Message> AskOnce(const keeper::Request& request,
                                            Deadline deadline, Busy* busy);
  // The same, for as long as the keeper waits, which is to be until `deadline`.
  // `looks_once`: it is asked for its answer also where that has passed.
  absl::StatusOr<platform::Message> AskAndWait(keeper::Request request,
                                               Deadline deadline,
                                               bool looks_once);
  absl::Status AskForOk(const keeper::Request& request, Deadline deadline);
  // OK when the answer is kOk.
  absl::Status CheckOk(const absl::StatusOr<platform::Message>& answer);
  // `request`, a kPut or kReplace, and then `memory`.
  absl::Status SendAs(keeper::Request request, const Shareable& memory,
                      Deadline deadline);
  // `request`, after which this connection has not the lock.
  absl::Status EndLock(const keeper::Request& request, Deadline deadline);
  // Puts what `create` makes under the name that is reserved for this connection, or
  // gives it back.
  absl::StatusOr<AttachedOrCreated> CreateReserved(
      absl::string_view name, std::uint64_t size,
      const std::function<absl::StatusOr<Allocation>()>& create,
      Deadline deadline);
  // After what followed an answer: keeper::BeginsExchange(). `last_word` as
  // below, where this side left it earlier.
  void EndExchange(bool in_step, std::uint16_t last_word);
  // After an error, when an answer may still come. `last_word` ends what the
  // keeper may be in the middle of: kRefused where it sends memory, else kAbort.
  void Disconnect(std::uint16_t last_word);

  KeeperClientOptions options_;
  Connection channel_;
  // An answer, or what follows one, may still come, and would be taken for that to
  // the next request. So nothing is asked any more, and the connection stays for the
  // sake of its locks. Also while a call waits for either: an exception may end it.
  bool is_behind_ = false;
  bool lifeline_sent_ = false;    // Over this connection.
  std::set<std::string> locked_;  // What this connection may have locked.
  bool was_answered_ = false;     // Over this connection: the keeper has room.
  bool was_turned_away_ = false;  // It had none: there is no connection.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_KEEPER_KEEPER_H_
