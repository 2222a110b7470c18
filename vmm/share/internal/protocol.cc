#include "vmm/share/internal/protocol.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"

namespace vmm::protocol {
namespace {

constexpr std::size_t kMaxErrorText = 1024;
constexpr std::size_t kIdBytes = 16 + 8 + 4;
constexpr std::size_t kKeyBytes =
    sizeof(ShareKey::place) + sizeof(ShareKey::secret);

absl::Status SendIds(platform::Channel& channel, MessageType type,
                     std::vector<std::uint8_t> payload,
                     absl::Span<const MemoryId> ids, Deadline deadline) {
  platform::Check(!ids.empty() && ids.size() <= kMaxRequested,
                  "a message names 1 to kMaxRequested allocations");
  WireWriter out(payload);
  for (const MemoryId& id : ids) {
    out.PutBytes(id.owner.bytes);
    out.Put<std::uint64_t>(id.number);
    out.Put<std::uint32_t>(id.generation);
  }
  return channel.Send(type, payload, {}, deadline);
}

// All that is left, as 1 to kMaxRequested ids. Empty: it is something else.
std::vector<MemoryId> TakeIds(WireReader& in) {
  if (in.left() % kIdBytes != 0 || in.left() / kIdBytes > kMaxRequested) {
    return {};
  }
  std::vector<MemoryId> ids(in.left() / kIdBytes);
  for (MemoryId& id : ids) {
    in.TakeBytes(absl::MakeSpan(id.owner.bytes));
    id.number = in.Take<std::uint64_t>();
    id.generation = in.Take<std::uint32_t>();
  }
  return ids;
}

}  // namespace

absl::Status SendError(platform::Channel& channel, MessageType type,
                       const absl::Status& error, Deadline deadline,
                       const platform::CancelEvent* cancel) {
  // The peer has cancelled nothing: it was this side's program.
  const bool is_ours_alone = absl::IsCancelled(error);
  const absl::string_view text = is_ours_alone
                                     ? "it was told to stop meanwhile"
                                     : error.message().substr(0, kMaxErrorText);
  const auto code = is_ours_alone
                        ? static_cast<int>(absl::StatusCode::kUnavailable)
                        : error.raw_code();
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(code));
  out.PutText(text);
  return channel.Send(type, payload, {}, deadline, cancel);
}

absl::Status DecodeError(absl::Span<const std::uint8_t> payload,
                         absl::string_view who) {
  WireReader in(payload);
  const auto code = in.Take<std::uint32_t>();
  if (in.overrun() || code == 0 ||
      code > static_cast<std::uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::DataLossError(
        absl::StrCat(who, " refused with an error that cannot be read"));
  }
  const auto said = payload.subspan(sizeof(code), kMaxErrorText);
  std::string text(said.begin(), said.end());
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat(who, " refused: ", text));
}

absl::Status SendOpen(platform::Channel& channel,
                      absl::Span<const ShareKey> keys, Deadline deadline) {
  platform::Check(!keys.empty() && keys.size() <= kMaxRequested,
                  "a request has 1 to kMaxRequested keys");
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  out.Put(kOpenVersion);
  out.PutZeros(2);
  for (const ShareKey& key : keys) {
    out.PutBytes(key.place);
    out.PutBytes(key.secret);
  }
  RETURN_IF_ERROR(platform::SendLifeline(channel, deadline));
  return channel.Send(kOpen, payload, {}, deadline);
}

absl::StatusOr<std::vector<ShareKey>> DecodeOpen(
    const platform::Message& message) {
  WireReader in(message.payload);
  const auto version = in.Take<std::uint16_t>();
  if (message.type == kOpen && !in.overrun() && version > kOpenVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "a request of version ", version, "; this vmmshare reads version ",
        kOpenVersion, ". Use the same release in the owner and the importer"));
  }
  const bool zero = in.TakeZeros(2);
  const std::size_t count = in.left() / kKeyBytes;
  if (message.type != kOpen || version != kOpenVersion || !zero ||
      !message.handles.empty() || in.left() % kKeyBytes != 0 || count == 0 ||
      count > kMaxRequested) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of type 0x", absl::Hex(message.type), " with ",
        message.payload.size(), " bytes and ", message.handles.size(),
        " handles is no request; expected 1 to ", kMaxRequested, " keys of ",
        kKeyBytes, " bytes and no handle"));
  }
  std::vector<ShareKey> keys(count);
  std::set<std::array<std::uint8_t, sizeof(ShareKey::place)>> places;
  for (ShareKey& key : keys) {
    in.TakeBytes(absl::MakeSpan(key.place));
    in.TakeBytes(absl::MakeSpan(key.secret));
    // Each answer costs the owner handles; a peer that wants a thing twice has
    // it with the first.
    if (!places.insert(key.place).second) {
      return absl::InvalidArgumentError(
          "a request has the same key twice; expected each once");
    }
  }
  return keys;
}

absl::Status SendGranted(platform::Channel& channel, Access access,
                         Deadline deadline) {
  std::vector<std::uint8_t> payload;
  WireWriter(payload).Put(static_cast<std::uint32_t>(access));
  return channel.Send(kGranted, payload, {}, deadline);
}

absl::StatusOr<Access> ReceiveGranted(platform::Channel& channel,
                                      Deadline deadline) {
  ASSIGN_OR_RETURN(const platform::Message message, channel.Receive(deadline));
  if (message.type == kAbort) return DecodeError(message.payload, "the owner");
  WireReader in(message.payload);
  const auto access = static_cast<Access>(in.Take<std::uint32_t>());
  if (message.type == kGranted && message.handles.empty() && !in.overrun() &&
      in.left() == 0 &&
      (access == Access::kRead || access == Access::kReadWrite)) {
    return access;
  }
  channel.Close();
  return absl::DataLossError(
      absl::StrCat("the owner broke the protocol: a message of type 0x",
                   absl::Hex(message.type), " with ", message.payload.size(),
                   " bytes in place of what it grants; the channel is closed"));
}

absl::Status SendReturn(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, Deadline deadline) {
  return SendIds(channel, kReturn, {}, ids, deadline);
}

absl::StatusOr<std::vector<MemoryId>> DecodeReturn(
    const platform::Message& message) {
  WireReader in(message.payload);
  std::vector<MemoryId> ids = TakeIds(in);
  if (message.type != kReturn || !message.handles.empty() || ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of type 0x", absl::Hex(message.type), " with ",
        message.payload.size(), " bytes and ", message.handles.size(),
        " handles is no return of memory; expected 1 to ", kMaxRequested,
        " ids of ", kIdBytes, " bytes and no handle"));
  }
  return ids;
}

void PutWithin(WireWriter& out, absl::Duration within) {
  out.Put(static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, absl::ToInt64Milliseconds(within))));
}

std::optional<absl::Duration> TakeWithin(WireReader& in) {
  const auto within = in.Take<std::uint64_t>();
  constexpr auto kMost =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (in.overrun() || within > kMost) return std::nullopt;
  return absl::Milliseconds(static_cast<std::int64_t>(within));
}

absl::Status SendRecall(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, absl::Duration within,
                        Deadline deadline) {
  std::vector<std::uint8_t> start;
  WireWriter out(start);
  PutWithin(out, within);
  return SendIds(channel, kRecall, std::move(start), ids, deadline);
}

absl::StatusOr<Recall> DecodeRecall(const platform::Message& message) {
  WireReader in(message.payload);
  const std::optional<absl::Duration> within = TakeWithin(in);
  std::vector<MemoryId> ids = TakeIds(in);
  if (message.type != kRecall || !message.handles.empty() || ids.empty() ||
      !within.has_value()) {
    return absl::DataLossError(
        absl::StrCat("the owner broke the protocol: a message of type 0x",
                     absl::Hex(message.type), " with ", message.payload.size(),
                     " bytes and ", message.handles.size(),
                     " handles is no recall; the channel is closed"));
  }
  return Recall{*within, std::move(ids)};
}

}  // namespace vmm::protocol
