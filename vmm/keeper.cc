#include "vmm/keeper.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/annotate.h"
#include "platform/channel_address.h"
#include "vmm/keeper/protocol.h"
#include "vmm/protocol.h"
#include "vmm/transfer.h"

namespace vmm {
namespace {

using keeper::Request;
using platform::Channel;
using platform::Message;

// What the keeper is told to wait, so that its answer, which says for whom, is
// here before the deadline.
absl::Duration WaitBefore(absl::Time deadline) {
  const absl::Duration left = std::clamp(
      deadline - absl::Now(), absl::ZeroDuration(), keeper::kMaxWait);
  const absl::Duration spare = std::min(left / 4, absl::Milliseconds(100));
  return absl::Floor(left - spare, absl::Milliseconds(1));
}

absl::Status About(const absl::Status& status, absl::string_view name) {
  return platform::Annotate(status, absl::StrCat("kept memory \"", name, "\""));
}

absl::Status Broken(Channel& channel, const Message& message) {
  channel.Close();
  return absl::DataLossError(
      absl::StrCat("the keeper answered with a message of type 0x",
                   absl::Hex(message.type), " and ", message.payload.size(),
                   " bytes that was not asked for; the connection is closed"));
}

// The keeper's answer, which is no error. After an error of the connection it
// is closed: the answer may still come and would be taken for that to the next
// request.
absl::StatusOr<Message> Ask(Channel& channel, const Request& request,
                            absl::Time deadline) {
  if (request.type != keeper::kList || !request.name.empty()) {
    absl::Status usable = keeper::CheckName(request.name);
    if (!usable.ok()) return usable;
  }
  absl::Status asked =
      channel.Send(request.type, keeper::EncodeRequest(request), {}, deadline);
  absl::StatusOr<Message> answer =
      asked.ok() ? channel.Receive(deadline) : asked;
  if (!answer.ok()) {
    channel.Close();
    return platform::Annotate(answer.status(), "the keeper did not answer",
                              "The connection is closed, and with it go its "
                              "writer locks; connect anew.");
  }
  if (!answer->handles.empty()) return Broken(channel, *answer);
  if (answer->type == keeper::kError) {
    return protocol::DecodeError(answer->payload, "the keeper");
  }
  return answer;
}

absl::Status AskForOk(Channel& channel, const Request& request,
                      absl::Time deadline) {
  absl::StatusOr<Message> answer = Ask(channel, request, deadline);
  if (!answer.ok()) return answer.status();
  if (answer->type == keeper::kOk && answer->payload.empty()) {
    return absl::OkStatus();
  }
  return Broken(channel, *answer);
}

bool WantsToWrite(const ImportOptions& options) {
  if (options.host_access == Access::kReadWrite) return true;
  if (options.grants.empty()) return options.access == Access::kReadWrite;
  return std::any_of(options.grants.begin(), options.grants.end(),
                     [](const AccessGrant& grant) {
                       return grant.access == Access::kReadWrite;
                     });
}

ImportOptions ForWriting(ImportOptions options) {
  options.access = Access::kReadWrite;
  for (AccessGrant& grant : options.grants) grant.access = Access::kReadWrite;
  return options;
}

// What follows kAttached.
absl::StatusOr<ImportedAllocation> ReceiveKept(Channel& channel,
                                               const platform::Driver& driver,
                                               const ImportOptions& options,
                                               std::uint64_t expected_size,
                                               absl::Time deadline) {
  std::optional<ImportedAllocation> imported;
  absl::StatusOr<std::size_t> count = protocol::ReceiveAll(
      channel,
      [&](const protocol::Incoming& incoming) -> absl::Status {
        const std::uint64_t size = incoming.ticket.requested_size;
        if (imported.has_value() ||
            (expected_size != 0 && size != expected_size)) {
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
      deadline);
  if (!count.ok()) {
    // In the middle of an exchange nobody knows what comes next.
    if (absl::IsDeadlineExceeded(count.status())) channel.Close();
    return count.status();
  }
  return *std::move(imported);
}

absl::StatusOr<keeper::Attached> ReadAttached(Channel& channel,
                                              const Message& answer) {
  if (answer.type != keeper::kAttached) return Broken(channel, answer);
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
      "it is sealed and mapped read-only from now on: ask for Access::kRead");
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

absl::StatusOr<KeeperClient> KeeperClient::Connect(
    const KeeperClientOptions& options, absl::Time deadline) {
  absl::StatusOr<std::string> address =
      options.address.empty() ? DefaultKeeperAddress() : options.address;
  if (!address.ok()) return address.status();
  absl::StatusOr<Channel> channel =
      Channel::Connect(*address, options.keepers, deadline);
  if (!channel.ok()) {
    return platform::Annotate(
        channel.status(), "no keeper can be asked",
        absl::IsNotFound(channel.status())
            ? "Start one: vmmshare keep. Containers must share its directory."
            : "");
  }
  return KeeperClient(*std::move(channel));
}

absl::Status KeeperClient::Put(absl::string_view name, const Shareable& memory,
                               absl::Time deadline) {
  absl::StatusOr<protocol::Outgoing> outgoing = protocol::MakeOutgoing(memory);
  if (!outgoing.ok()) return About(outgoing.status(), name);
  absl::Status begun = AskForOk(channel_,
                                {.type = keeper::kPut,
                                 .name = std::string(name),
                                 .ticket = outgoing->ticket},
                                deadline);
  if (!begun.ok()) return About(begun, name);
  return About(
      protocol::SendAll(channel_, absl::MakeConstSpan(&*outgoing, 1), deadline),
      name);
}

absl::StatusOr<ImportedAllocation> KeeperClient::Attach(
    absl::string_view name, const platform::Driver& driver,
    const AttachOptions& options, absl::Time deadline) {
  absl::StatusOr<Message> answer =
      Ask(channel_,
          {.type = keeper::kAttach,
           .name = std::string(name),
           .read_write = WantsToWrite(options.import),
           .size = options.expected_size},
          deadline);
  if (!answer.ok()) return About(answer.status(), name);
  absl::StatusOr<keeper::Attached> attached = ReadAttached(channel_, *answer);
  if (!attached.ok()) return About(attached.status(), name);
  absl::Status allowed = CheckNotSealed(channel_, *attached, options.import);
  if (!allowed.ok()) return About(allowed, name);
  absl::StatusOr<ImportedAllocation> imported = ReceiveKept(
      channel_, driver, options.import, options.expected_size, deadline);
  if (!imported.ok()) return About(imported.status(), name);
  return imported;
}

absl::StatusOr<AttachedOrCreated> KeeperClient::AttachOrCreate(
    absl::string_view name, std::uint64_t size, const platform::Driver& driver,
    const AttachOrCreateOptions& options,
    const std::function<absl::StatusOr<Allocation>()>& create,
    absl::Time deadline) {
  const bool read_write = WantsToWrite(options.import);
  if (size == 0 || (options.until_sealed && read_write)) {
    return About(
        absl::InvalidArgumentError(
            size == 0 ? "size 0 to attach or create"
                      : "sealed memory is waited for, to be mapped for "
                        "writing: ask for Access::kRead"),
        name);
  }
  absl::StatusOr<Message> answer = Ask(channel_,
                                       {.type = keeper::kAttachOrCreate,
                                        .name = std::string(name),
                                        .read_write = read_write,
                                        .until_sealed = options.until_sealed,
                                        .size = size,
                                        .wait = WaitBefore(deadline)},
                                       deadline);
  if (!answer.ok()) return About(answer.status(), name);
  AttachedOrCreated result;
  if (answer->type != keeper::kCreate) {
    absl::StatusOr<keeper::Attached> attached = ReadAttached(channel_, *answer);
    if (!attached.ok()) return About(attached.status(), name);
    absl::Status allowed = CheckNotSealed(channel_, *attached, options.import);
    if (!allowed.ok()) return About(allowed, name);
    if (attached->taken_over) result.outcome = KeptMemoryFrom::kTakenOver;
    absl::StatusOr<ImportedAllocation> imported = ReceiveKept(
        channel_, driver,
        attached->taken_over ? ForWriting(options.import) : options.import,
        size, deadline);
    if (!imported.ok()) {
      // The next one may be able to.
      if (attached->taken_over) Unlock(name, deadline).IgnoreError();
      return About(imported.status(), name);
    }
    result.attached = *std::move(imported);
    return result;
  }
  if (!answer->payload.empty()) return Broken(channel_, *answer);

  // Reserved: from here on somebody may wait for this process.
  absl::Cleanup give_back = [&] {
    if (!channel_.is_open()) return;  // The reservation has gone with it.
    AskForOk(channel_, {.type = keeper::kAbandon, .name = std::string(name)},
             deadline)
        .IgnoreError();
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

absl::Status KeeperClient::Lock(absl::string_view name, absl::Time deadline) {
  return About(AskForOk(channel_,
                        {.type = keeper::kLock,
                         .name = std::string(name),
                         .wait = WaitBefore(deadline)},
                        deadline),
               name);
}

absl::Status KeeperClient::Unlock(absl::string_view name, absl::Time deadline) {
  return About(
      AskForOk(channel_, {.type = keeper::kUnlock, .name = std::string(name)},
               deadline),
      name);
}

absl::Status KeeperClient::Seal(absl::string_view name, absl::Time deadline) {
  return About(
      AskForOk(channel_, {.type = keeper::kSeal, .name = std::string(name)},
               deadline),
      name);
}

absl::Status KeeperClient::Drop(absl::string_view name, absl::Time deadline) {
  return About(
      AskForOk(channel_, {.type = keeper::kDrop, .name = std::string(name)},
               deadline),
      name);
}

absl::StatusOr<KeeperListing> KeeperClient::List(absl::Time deadline) {
  KeeperListing listing;
  std::string last;
  for (bool more = true; more;) {
    absl::StatusOr<Message> answer =
        Ask(channel_, {.type = keeper::kList, .name = last}, deadline);
    if (!answer.ok()) return answer.status();
    if (answer->type != keeper::kListed) return Broken(channel_, *answer);
    absl::StatusOr<keeper::Page> page = keeper::DecodePage(answer->payload);
    if (!page.ok()) {
      channel_.Close();
      return page.status();
    }
    for (KeptMemory& memory : page->memory) {
      // Or a list could go on for ever.
      if (memory.name <= last) return Broken(channel_, *answer);
      last = memory.name;
      listing.memory.push_back(std::move(memory));
    }
    more = page->more;
    listing.restart_note = std::move(page->restart_note);
  }
  return listing;
}

}  // namespace vmm
