#include "vmm/keeper/keeper.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/ipc/channel_address.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm {
namespace {

using platform::Channel;
using platform::Message;

// What the keeper is told to wait, so that its answer, which says for whom, is
// here before the deadline.
absl::Duration WaitBefore(Deadline deadline) {
  const absl::Duration left = std::min(deadline.Left(), keeper::kMaxWait);
  const absl::Duration spare = std::min(left / 4, absl::Milliseconds(100));
  return absl::Floor(left - spare, absl::Milliseconds(1));
}

// Whether the keeper, told to wait for less than until `deadline`, may be asked
// again if it has waited in vain.
bool IsLongerThanItWaits(Deadline deadline) {
  return deadline.Left() > keeper::kMaxWait;
}

// When its answer must be here. Who does not wait is told all the same how it
// is: what keeper and client need for that, which is little unless the machine is
// busy, is not counted as waiting.
Deadline AnswerBy(Deadline deadline) {
  constexpr absl::Duration kLook = absl::Seconds(1);
  return WaitBefore(deadline) > absl::ZeroDuration() ? deadline
                                                     : Deadline::In(kLook);
}

absl::Status About(const absl::Status& status, absl::string_view name) {
  return platform::Annotate(status, absl::StrCat("kept memory \"", name, "\""));
}

ImportOptions ForWriting(ImportOptions options) {
  options.access = Access::kReadWrite;
  for (AccessGrant& grant : options.grants) grant.access = Access::kReadWrite;
  return options;
}

// What follows kAttached. `in_step`: whether the keeper has nothing more to say
// of it.
absl::StatusOr<ImportedAllocation> ReceiveKept(Channel& channel,
                                               const platform::Driver& driver,
                                               const ImportOptions& options,
                                               std::uint64_t expected_size,
                                               Deadline deadline,
                                               bool* in_step) {
  std::optional<ImportedAllocation> imported;
  absl::StatusOr<std::size_t> count = protocol::TryReceiveAll(
      channel,
      [&](const protocol::Incoming& incoming) -> absl::Status {
        const std::uint64_t size = incoming.ticket.requested_size;
        if (expected_size != 0 && size != expected_size) {
          return absl::DataLossError(absl::StrCat("the keeper sent ",
                                                  incoming.ticket.Describe(),
                                                  ", which was not asked for"));
        }
        absl::StatusOr<ImportedAllocation> one = ImportedAllocation::Open(
            driver, incoming.ticket, incoming.handles, options);
        if (!one.ok()) return one.status();
        imported = *std::move(one);
        return absl::OkStatus();
      },
      deadline, in_step, nullptr, 1);
  if (!count.ok()) {
    // It was announced: what is late still comes.
    if (absl::IsDeadlineExceeded(count.status())) *in_step = false;
    return count.status();
  }
  return *std::move(imported);
}

absl::StatusOr<keeper::Attached> ReadAttached(Channel& channel,
                                              const Message& answer) {
  if (answer.type != keeper::kAttached) return keeper::Broken(channel, answer);
  absl::StatusOr<keeper::Attached> attached =
      keeper::DecodeAttached(answer.payload);
  if (!attached.ok()) channel.Close();
  return attached;
}

// The keeper has checked this before; a keeper that does not know its own rules
// must not make a program write.
absl::Status CheckNotSealed(Channel& channel, const keeper::Attached& attached,
                            const ImportOptions& options) {
  if (!attached.sealed || !WantsToWrite(options)) return absl::OkStatus();
  channel.Close();
  return absl::FailedPreconditionError(
      "it is sealed and mapped read-only from now on: ask for reading only");
}

}  // namespace

absl::string_view NameOf(KeptState state) {
  switch (state) {
    case KeptState::kReserved:
      return "reserved";
    case KeptState::kWritable:
      return "writable";
    case KeptState::kLocked:
      return "locked";
    case KeptState::kSealed:
      return "sealed";
  }
  return "unknown";
}

absl::StatusOr<std::string> DefaultKeeperAddress() {
  return platform::DefaultAddressOf(
      absl::StrCat("keeper-", platform::CurrentUser().text()));
}

absl::Status KeeperClient::Put(absl::string_view name, const Shareable& memory,
                               Deadline deadline) {
  absl::StatusOr<protocol::Outgoing> outgoing = protocol::MakeOutgoing(memory);
  if (!outgoing.ok()) return About(outgoing.status(), name);
  absl::Status begun = AskForOk({.type = keeper::kPut,
                                 .name = std::string(name),
                                 .ticket = outgoing->ticket},
                                deadline);
  if (!begun.ok()) return About(begun, name);
  // Where it fails in between, the keeper may have it all the same.
  locked_.insert(std::string(name));
  const protocol::SendResult put = protocol::TrySendAll(
      *channel_, absl::MakeConstSpan(&*outgoing, 1), deadline);
  EndExchange(put.in_step, protocol::kAbort);
  if (!put.status.ok() && is_open()) locked_.erase(std::string(name));
  return About(put.status, name);
}

absl::StatusOr<ImportedAllocation> KeeperClient::Attach(
    absl::string_view name, const platform::Driver& driver,
    const AttachOptions& options, Deadline deadline) {
  absl::StatusOr<Message> answer =
      Ask({.type = keeper::kAttach,
           .name = std::string(name),
           .read_write = WantsToWrite(options.import),
           .size = options.expected_size},
          deadline);
  if (!answer.ok()) return About(answer.status(), name);
  absl::StatusOr<keeper::Attached> attached = ReadAttached(*channel_, *answer);
  if (!attached.ok()) return About(attached.status(), name);
  absl::Status allowed = CheckNotSealed(*channel_, *attached, options.import);
  if (!allowed.ok()) return About(allowed, name);
  bool in_step = true;
  absl::StatusOr<ImportedAllocation> imported =
      ReceiveKept(*channel_, driver, options.import, options.expected_size,
                  deadline, &in_step);
  EndExchange(in_step, protocol::kRefused);
  if (!imported.ok()) return About(imported.status(), name);
  return imported;
}

absl::StatusOr<AttachedOrCreated> KeeperClient::AttachOrCreate(
    absl::string_view name, std::uint64_t size, const platform::Driver& driver,
    const AttachOrCreateOptions& options,
    const std::function<absl::StatusOr<Allocation>()>& create,
    Deadline deadline) {
  const bool read_write = WantsToWrite(options.import);
  if (size == 0 || (options.until_sealed && read_write)) {
    return About(
        absl::InvalidArgumentError(
            size == 0 ? "size 0 to attach or create"
                      : "sealed memory is waited for, to be mapped for "
                        "writing: ask for reading only"),
        name);
  }
  absl::StatusOr<Message> answer = Message();
  bool is_longer;
  do {
    is_longer = IsLongerThanItWaits(deadline);
    answer = Ask({.type = keeper::kAttachOrCreate,
                  .name = std::string(name),
                  .read_write = read_write,
                  .until_sealed = options.until_sealed,
                  .size = size,
                  .wait = WaitBefore(deadline)},
                 deadline);
  } while (is_longer && is_open() && absl::IsDeadlineExceeded(answer.status()));
  if (!answer.ok()) return About(answer.status(), name);
  AttachedOrCreated result;
  if (answer->type != keeper::kCreate) {
    absl::StatusOr<keeper::Attached> attached =
        ReadAttached(*channel_, *answer);
    if (!attached.ok()) return About(attached.status(), name);
    absl::Status allowed = CheckNotSealed(*channel_, *attached, options.import);
    if (!allowed.ok()) return About(allowed, name);
    bool is_new_lock = false;
    if (attached->taken_over) {
      result.outcome = KeptMemoryFrom::kTakenOver;
      is_new_lock = locked_.insert(std::string(name)).second;
    }
    bool in_step = true;
    absl::StatusOr<ImportedAllocation> imported = ReceiveKept(
        *channel_, driver,
        attached->taken_over ? ForWriting(options.import) : options.import,
        size, deadline, &in_step);
    // Nothing of it is mapped; of what was locked before something may be.
    if (is_new_lock && !in_step) locked_.erase(std::string(name));
    EndExchange(in_step, protocol::kRefused);
    if (!imported.ok()) {
      // The next one may be able to.
      if (attached->taken_over) Unlock(name, deadline).IgnoreError();
      return About(imported.status(), name);
    }
    result.attached = *std::move(imported);
    return result;
  }
  if (!answer->payload.empty()) return keeper::Broken(*channel_, *answer);

  // Reserved: from here on somebody may wait for this process.
  absl::Cleanup give_back = [&] {
    if (!is_open()) return;  // The reservation goes with it.
    try {
      AskForOk({.type = keeper::kAbandon, .name = std::string(name)}, deadline)
          .IgnoreError();
    } catch (const std::bad_alloc&) {
      // In a destructor. The reservation goes with the connection, which is of
      // no other use: others wait for it.
      is_behind_ = true;
    }
  };
  absl::StatusOr<Allocation> created = create();
  if (!created.ok()) return About(created.status(), name);
  if (created->requested_size() != size) {
    return About(absl::InvalidArgumentError(absl::StrCat(
                     "created with ", created->requested_size(),
                     " bytes; expected the ", size, " that were asked for")),
                 name);
  }
  absl::Status put = Put(name, created->shareable(), deadline);
  if (!put.ok()) return put;
  std::move(give_back).Cancel();
  result.outcome = KeptMemoryFrom::kCreated;
  result.created = *std::move(created);
  return result;
}

absl::Status KeeperClient::Lock(absl::string_view name, Deadline deadline) {
  absl::Status locked;
  bool is_longer;
  do {
    is_longer = IsLongerThanItWaits(deadline);
    locked = AskForOk({.type = keeper::kLock,
                       .name = std::string(name),
                       .wait = WaitBefore(deadline)},
                      AnswerBy(deadline));
  } while (is_longer && is_open() && absl::IsDeadlineExceeded(locked));
  if (locked.ok()) locked_.insert(std::string(name));
  return About(locked, name);
}

absl::Status KeeperClient::Unlock(absl::string_view name, Deadline deadline) {
  absl::Status unlocked =
      AskForOk({.type = keeper::kUnlock, .name = std::string(name)}, deadline);
  if (unlocked.ok()) locked_.erase(std::string(name));
  return About(unlocked, name);
}

absl::Status KeeperClient::Seal(absl::string_view name, Deadline deadline) {
  absl::Status sealed =
      AskForOk({.type = keeper::kSeal, .name = std::string(name)}, deadline);
  if (sealed.ok()) locked_.erase(std::string(name));
  return About(sealed, name);
}

absl::Status KeeperClient::Drop(absl::string_view name, Deadline deadline) {
  absl::Status dropped =
      AskForOk({.type = keeper::kDrop, .name = std::string(name)}, deadline);
  if (dropped.ok()) locked_.erase(std::string(name));
  return About(dropped, name);
}

absl::Status KeeperClient::Replace(absl::string_view name,
                                   const Shareable& memory,
                                   const std::optional<MemoryId>& replaced,
                                   Deadline deadline) {
  absl::StatusOr<protocol::Outgoing> outgoing = protocol::MakeOutgoing(memory);
  if (!outgoing.ok()) return About(outgoing.status(), name);
  absl::Status begun = AskForOk({.type = keeper::kReplace,
                                 .name = std::string(name),
                                 .ticket = outgoing->ticket,
                                 .replaces = replaced},
                                deadline);
  if (!begun.ok()) return About(begun, name);
  const protocol::SendResult put = protocol::TrySendAll(
      *channel_, absl::MakeConstSpan(&*outgoing, 1), deadline);
  EndExchange(put.in_step, protocol::kAbort);
  return About(put.status, name);
}

absl::StatusOr<KeeperListing> KeeperClient::List(Deadline deadline) {
  KeeperListing listing;
  std::string last;
  for (bool more = true; more;) {
    absl::StatusOr<Message> answer =
        Ask({.type = keeper::kList, .name = last}, deadline);
    if (!answer.ok()) return answer.status();
    if (answer->type != keeper::kListed)
      return keeper::Broken(*channel_, *answer);
    absl::StatusOr<keeper::Page> page = keeper::DecodePage(answer->payload);
    if (!page.ok()) {
      channel_->Close();
      return page.status();
    }
    for (KeptMemory& memory : page->memory) {
      // Or a list could go on for ever.
      if (memory.name <= last) return keeper::Broken(*channel_, *answer);
      last = memory.name;
      listing.memory.push_back(std::move(memory));
    }
    more = page->more;
    listing.restart_note = std::move(page->restart_note);
  }
  return listing;
}

}  // namespace vmm
