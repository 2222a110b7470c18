// What a keeper and its clients say to each other; internal to vmm/.
// docs/wire_format.md has the byte tables.
//
//   client                        keeper
//   kPut  name, ticket            kOk        and then an exchange of one
//                                            allocation, client to keeper
//   kAttach  name                 kAttached  and then an exchange, keeper to
//                                            client
//   kAttachOrCreate  name         kAttached and an exchange, or
//                                 kCreate  the name is reserved for the client
//   kAbandon  name                kOk      a reservation given back
//   kLock, kUnlock, kSeal, kDrop  kOk
//   kList  after which name       kListed  a page of the list
//   kAbort, kRefused              nothing. The client gave up on an answer or
//                                 in an exchange, and will only say goodbye
//   kGoodbye                      hangs up. The locks of the connection are
//                                 free: nothing is at work for it
//
// The first request of a connection that may gain a lock (MayGainLock) is
// followed by the client's lifeline: a hang-up without a goodbye leaves the lock
// with the process until the end of that is proven (platform/ipc/peer_watch.h).
//
// The exchange is that of vmm/share/internal/protocol.h. In place of any reply
// the keeper may send kError. A client has one request
// under way at a time.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_PROTOCOL_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_PROTOCOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/ticket.h"

namespace vmm::keeper {

enum MessageType : std::uint16_t {
  kPut = 0xF101,
  kAttach = 0xF102,
  kAttachOrCreate = 0xF103,
  kAbandon = 0xF104,
  kLock = 0xF105,
  kUnlock = 0xF106,
  kSeal = 0xF107,
  kDrop = 0xF108,
  kList = 0xF109,
  kGoodbye = 0xF10A,  // Without a payload.
  kReplace = 0xF10B,
  kOk = 0xF181,
  kError = 0xF182,
  kAttached = 0xF183,
  kCreate = 0xF184,
  kListed = 0xF185,
};

constexpr bool MayGainLock(MessageType type) {
  return type == kPut || type == kAttachOrCreate || type == kLock;
}

// Whether an exchange follows what the keeper answered to a request.
constexpr bool BeginsExchange(MessageType request, std::uint16_t answer) {
  return answer == kAttached ||
         (answer == kOk && (request == kPut || request == kReplace));
}

inline constexpr std::size_t kMaxName = 128;
inline constexpr std::size_t kMaxUserText = 184;  // The longest SID.
inline constexpr std::size_t kMaxNote = 512;
// Of a wait that a client asks for: a day.
inline constexpr absl::Duration kMaxWait = absl::Hours(24);

// INVALID_ARGUMENT unless `name` has 1 to kMaxName of [A-Za-z0-9._/-].
absl::Status CheckName(absl::string_view name);

struct Request {
  MessageType type = kList;
  std::string name = {};      // Of kList: the last one seen, or none.
  bool read_write = false;    // kAttach, kAttachOrCreate: to be mapped so.
  bool until_sealed = false;  // kAttachOrCreate: waits for that.
  std::uint64_t size = 0;     // Bytes expected, or 0: those two.
  absl::Duration wait = {};   // kAttachOrCreate, kLock; whole ms.
  // kPut, kReplace: what is going to be sent.
  std::optional<Ticket> ticket = {};
  // kReplace: what is kept until then; none: nothing is.
  std::optional<MemoryId> replaces = {};
  friend bool operator==(const Request&, const Request&) = default;
};

// REQUIRES: the name and the fields fit the type.
std::vector<std::uint8_t> EncodeRequest(const Request& request);
// Total: INVALID_ARGUMENT for a message that is no request, and nothing that
// EncodeRequest() would have written otherwise is taken for one.
absl::StatusOr<Request> DecodeRequest(const platform::Message& message);

// The payload of kAttached.
struct Attached {
  bool sealed = false;
  // The creator ended before it sealed: this client is the writer now.
  bool taken_over = false;
  friend bool operator==(const Attached&, const Attached&) = default;
};
std::vector<std::uint8_t> EncodeAttached(const Attached& attached);
// DATA_LOSS for what is none.
absl::StatusOr<Attached> DecodeAttached(absl::Span<const std::uint8_t> payload);

// A page of the list.
struct Page {
  bool more = false;  // Ask again, with the last name.
  std::string restart_note = {};
  std::vector<KeptMemory> memory = {};
};
// As many of page.memory as fit into a message; `more` is set when some did
// not.
std::vector<std::uint8_t> EncodePage(const Page& page);
// DATA_LOSS for what is none. All text in it is printable.
absl::StatusOr<Page> DecodePage(absl::Span<const std::uint8_t> payload);

// A client's: `status`, with the name of what it is about.
absl::Status About(const absl::Status& status, absl::string_view name);

// A client's: what the keeper sent was not asked for. Closes the channel.
absl::Status Broken(platform::Channel& channel,
                    const platform::Message& message);

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_PROTOCOL_H_
