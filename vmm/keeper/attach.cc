// How a client of a keeper gets what is kept, or keeps what it makes.
#include <new>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

using keeper::About;
using platform::Channel;
using platform::Message;

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
        ASSIGN_OR_RETURN(imported,
                         ImportedAllocation::Open(driver, incoming.ticket,
                                                  incoming.handles, options));
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

// What the keeper announces, to be mapped as `options` say.
absl::StatusOr<keeper::Attached> ReadAttached(Channel& channel,
                                              const Message& answer,
                                              const ImportOptions& options) {
  if (answer.type != keeper::kAttached) return keeper::Broken(channel, answer);
  absl::StatusOr<keeper::Attached> attached =
      keeper::DecodeAttached(answer.payload);
  // The keeper has checked this before; a keeper that does not know its own rules
  // must not make a program write.
  if (attached.ok() && attached->sealed && WantsToWrite(options)) {
    attached = absl::FailedPreconditionError(
        "it is sealed and mapped read-only from now on: ask for reading only");
  }
  if (!attached.ok()) channel.Close();
  return attached;
}

}  // namespace

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
  absl::StatusOr<keeper::Attached> attached =
      ReadAttached(*channel_, *answer, options.import);
  if (!attached.ok()) return About(attached.status(), name);
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
  absl::StatusOr<Message> answer =
      AskAndWait({.type = keeper::kAttachOrCreate,
                  .name = std::string(name),
                  .read_write = read_write,
                  .until_sealed = options.until_sealed,
                  .size = size},
                 deadline, /*looks_once=*/false);
  if (!answer.ok()) return About(answer.status(), name);
  if (answer->type == keeper::kCreate) {
    if (!answer->payload.empty()) return keeper::Broken(*channel_, *answer);
    return CreateReserved(name, size, create, deadline);
  }
  absl::StatusOr<keeper::Attached> attached =
      ReadAttached(*channel_, *answer, options.import);
  if (!attached.ok()) return About(attached.status(), name);
  AttachedOrCreated result;
  bool is_new_lock = false;
  if (attached->taken_over) {
    result.outcome = KeptMemoryFrom::kTakenOver;
    is_new_lock = locked_.insert(std::string(name)).second;
  }
  bool in_step = true;
  absl::StatusOr<ImportedAllocation> imported = ReceiveKept(
      *channel_, driver,
      attached->taken_over ? ForWriting(options.import) : options.import, size,
      deadline, &in_step);
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

absl::StatusOr<AttachedOrCreated> KeeperClient::CreateReserved(
    absl::string_view name, std::uint64_t size,
    const std::function<absl::StatusOr<Allocation>()>& create,
    Deadline deadline) {
  // From here on somebody may wait for this process.
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
  AttachedOrCreated result;
  result.outcome = KeptMemoryFrom::kCreated;
  result.created = *std::move(created);
  return result;
}

}  // namespace vmm
