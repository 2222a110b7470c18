#include "vmm/keeper/keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel_address.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {

using platform::Message;

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

absl::Status KeeperClient::SendAs(keeper::Request request,
                                  const Shareable& memory, Deadline deadline) {
  ASSIGN_OR_RETURN(const protocol::Outgoing outgoing,
                   protocol::MakeOutgoing(memory));
  request.ticket = outgoing.ticket;
  RETURN_IF_ERROR(AskForOk(request, deadline));
  const bool gains_lock = keeper::MayGainLock(request.type);
  // Where it fails in between, the keeper may have it all the same.
  if (gains_lock) locked_.insert(request.name);
  const protocol::SendResult sent = protocol::TrySendAll(
      *channel_, absl::MakeConstSpan(&outgoing, 1), deadline);
  EndExchange(sent.in_step, protocol::kAbort);
  if (gains_lock && !sent.status.ok() && is_open()) {
    locked_.erase(request.name);
  }
  return sent.status;
}

absl::Status KeeperClient::Put(absl::string_view name, const Shareable& memory,
                               Deadline deadline) {
  return keeper::About(SendAs({.type = keeper::kPut, .name = std::string(name)},
                              memory, deadline),
                       name);
}

absl::Status KeeperClient::Replace(absl::string_view name,
                                   const Shareable& memory,
                                   const std::optional<MemoryId>& replaced,
                                   Deadline deadline) {
  return keeper::About(SendAs({.type = keeper::kReplace,
                               .name = std::string(name),
                               .replaces = replaced},
                              memory, deadline),
                       name);
}

absl::Status KeeperClient::Lock(absl::string_view name, Deadline deadline) {
  absl::Status locked =
      CheckOk(AskAndWait({.type = keeper::kLock, .name = std::string(name)},
                         deadline, /*looks_once=*/true));
  if (locked.ok()) locked_.insert(std::string(name));
  return keeper::About(locked, name);
}

absl::Status KeeperClient::EndLock(const keeper::Request& request,
                                   Deadline deadline) {
  absl::Status ended = AskForOk(request, deadline);
  if (ended.ok()) locked_.erase(request.name);
  return keeper::About(ended, request.name);
}

absl::Status KeeperClient::Unlock(absl::string_view name, Deadline deadline) {
  return EndLock({.type = keeper::kUnlock, .name = std::string(name)},
                 deadline);
}

absl::Status KeeperClient::Seal(absl::string_view name, Deadline deadline) {
  return EndLock({.type = keeper::kSeal, .name = std::string(name)}, deadline);
}

absl::Status KeeperClient::Drop(absl::string_view name, Deadline deadline) {
  return EndLock({.type = keeper::kDrop, .name = std::string(name)}, deadline);
}

absl::StatusOr<KeeperListing> KeeperClient::List(Deadline deadline) {
  KeeperListing listing;
  std::string last;
  for (bool more = true; more;) {
    ASSIGN_OR_RETURN(const Message answer,
                     Ask({.type = keeper::kList, .name = last}, deadline));
    if (answer.type != keeper::kListed) {
      return keeper::Broken(*channel_, answer);
    }
    absl::StatusOr<keeper::Page> page = keeper::DecodePage(answer.payload);
    if (!page.ok()) {
      channel_->Close();
      return page.status();
    }
    for (KeptMemory& memory : page->memory) {
      // Or a list could go on for ever.
      if (memory.name <= last) return keeper::Broken(*channel_, answer);
      last = memory.name;
      listing.memory.push_back(std::move(memory));
    }
    more = page->more;
    listing.restart_note = std::move(page->restart_note);
  }
  return listing;
}

}  // namespace vmm
