#include "vmm/keeper/internal/protocol.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::keeper {
namespace {

constexpr std::uint16_t kVersion = 1;
constexpr std::uint8_t kReadWriteFlag = 1;
constexpr std::uint8_t kUntilSealedFlag = 2;
constexpr std::uint8_t kSealedFlag = 1;
constexpr std::uint8_t kTakenOverFlag = 2;
constexpr std::size_t kIdBytes = 28;

// Which fields a request of a type may set.
struct Fields {
  std::uint8_t flags = 0;
  bool size = false;
  bool wait = false;
  bool ticket = false;
  bool replaces = false;
  bool may_lack_name = false;
};

std::optional<Fields> FieldsOf(std::uint16_t type) {
  switch (type) {
    case kPut:
      return Fields{.ticket = true};
    case kReplace:
      return Fields{.ticket = true, .replaces = true};
    case kAttach:
      return Fields{.flags = kReadWriteFlag, .size = true};
    case kAttachOrCreate:
      return Fields{.flags = kReadWriteFlag | kUntilSealedFlag,
                    .size = true,
                    .wait = true};
    case kLock:
      return Fields{.wait = true};
    case kAbandon:
    case kUnlock:
    case kSeal:
    case kDrop:
      return Fields{};
    case kList:
      return Fields{.may_lack_name = true};
    default:
      return std::nullopt;
  }
}

absl::Status NoRequest(const platform::Message& message,
                       absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "a message of type 0x", absl::Hex(message.type), " with ",
      message.payload.size(), " bytes and ", message.handles.size(),
      " handles is no request to a keeper: ", why));
}

// All zero for none: no memory has generation 0.
void PutId(WireWriter& out, const MemoryId& id) {
  out.PutBytes(id.owner.bytes);
  out.Put<std::uint64_t>(id.number);
  out.Put<std::uint32_t>(id.generation);
}

MemoryId TakeId(WireReader& in) {
  MemoryId id;
  in.TakeBytes(absl::MakeSpan(id.owner.bytes));
  id.number = in.Take<std::uint64_t>();
  id.generation = in.Take<std::uint32_t>();
  return id;
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
         c == '_' || c == '/' || c == '-';
}

}  // namespace

absl::Status CheckName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxName &&
      std::all_of(name.begin(), name.end(), &IsNameCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the name of kept memory has ", name.size(), " bytes",
      name.size() > kMaxName || name.empty() ? "" : ", and not all of them fit",
      "; expected 1 to ", kMaxName, " of A-Z a-z 0-9 and \"._/-\""));
}

std::vector<std::uint8_t> EncodeRequest(const Request& request) {
  const std::optional<Fields> fields = FieldsOf(request.type);
  platform::Check(
      fields.has_value() && request.name.size() <= kMaxName &&
          request.ticket.has_value() == fields->ticket &&
          (fields->replaces || !request.replaces.has_value()),
      "a request to a keeper needs a type, a name that fits, and a ticket if "
      "it is kPut or kReplace");
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  out.Put<std::uint16_t>(kVersion);
  out.Put<std::uint8_t>(
      static_cast<std::uint8_t>((request.read_write ? kReadWriteFlag : 0) |
                                (request.until_sealed ? kUntilSealedFlag : 0)));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(request.name.size()));
  out.PutZeros(4);
  out.Put<std::uint64_t>(request.size);
  out.Put<std::uint64_t>(
      static_cast<std::uint64_t>(absl::ToInt64Milliseconds(request.wait)));
  out.PutText(request.name, kMaxName);
  if (request.ticket.has_value()) out.PutBytes(EncodeTicket(*request.ticket));
  if (fields->replaces) PutId(out, request.replaces.value_or(MemoryId()));
  return payload;
}

absl::StatusOr<Request> DecodeRequest(const platform::Message& message) {
  const std::optional<Fields> fields = FieldsOf(message.type);
  if (!fields.has_value()) return NoRequest(message, "the type is unknown");
  if (!message.handles.empty()) {
    return NoRequest(message, "expected no handle");
  }
  constexpr std::size_t kHeader = 24;
  const std::size_t expected = kHeader + kMaxName +
                               (fields->ticket ? kTicketBytes : 0) +
                               (fields->replaces ? kIdBytes : 0);
  WireReader in(message.payload);
  const auto version = in.Take<std::uint16_t>();
  const auto flags = in.Take<std::uint8_t>();
  const auto name_size = in.Take<std::uint8_t>();
  const bool reserved_is_zero = in.TakeZeros(4);
  Request request;
  request.type = static_cast<MessageType>(message.type);
  request.size = in.Take<std::uint64_t>();
  const auto wait = in.Take<std::uint64_t>();
  if (version > kVersion && message.payload.size() >= sizeof(version)) {
    return absl::UnimplementedError(absl::StrCat(
        "a request of version ", version, "; this keeper speaks up to ",
        kVersion, ": use a newer `vmmshare keep`"));
  }
  if (version != kVersion || message.payload.size() != expected) {
    return NoRequest(message,
                     absl::StrCat("version ", version, "; expected ", kVersion,
                                  " and ", expected, " bytes"));
  }
  if (!reserved_is_zero || (flags & ~fields->flags) != 0 ||
      (request.size != 0 && !fields->size) || (wait != 0 && !fields->wait) ||
      wait > static_cast<std::uint64_t>(absl::ToInt64Milliseconds(kMaxWait))) {
    return NoRequest(message, "a field has a value that it cannot have");
  }
  request.read_write = (flags & kReadWriteFlag) != 0;
  request.until_sealed = (flags & kUntilSealedFlag) != 0;
  request.wait = absl::Milliseconds(static_cast<std::int64_t>(wait));
  std::array<std::uint8_t, kMaxName> name{};
  in.TakeBytes(absl::MakeSpan(name));
  if (name_size > kMaxName ||
      !std::all_of(name.begin() + name_size, name.end(),
                   [](std::uint8_t c) { return c == 0; })) {
    return NoRequest(message, "the name has another length than stated");
  }
  request.name.assign(name.begin(), name.begin() + name_size);
  if (!(request.name.empty() && fields->may_lack_name)) {
    RETURN_IF_ERROR(CheckName(request.name));
  }
  if (fields->ticket) {
    ASSIGN_OR_RETURN(
        request.ticket,
        DecodeTicket(absl::MakeConstSpan(message.payload)
                         .subspan(kHeader + kMaxName, kTicketBytes)));
  }
  if (fields->replaces) {
    WireReader rest(absl::MakeConstSpan(message.payload)
                        .subspan(expected - kIdBytes, kIdBytes));
    const MemoryId id = TakeId(rest);
    if (id.generation == 0 && id != MemoryId()) {
      return NoRequest(message, "what it replaces is no memory");
    }
    if (id.generation != 0) request.replaces = id;
  }
  return request;
}

std::vector<std::uint8_t> EncodeAttached(const Attached& attached) {
  return {
      static_cast<std::uint8_t>((attached.sealed ? kSealedFlag : 0) |
                                (attached.taken_over ? kTakenOverFlag : 0))};
}

absl::StatusOr<Attached> DecodeAttached(
    absl::Span<const std::uint8_t> payload) {
  // Sealed memory has no writer.
  if (payload.size() != 1 || payload[0] > kTakenOverFlag) {
    return absl::DataLossError(
        absl::StrCat("the keeper announced memory with ", payload.size(),
                     " bytes that make no sense; the connection is closed"));
  }
  return Attached{.sealed = payload[0] == kSealedFlag,
                  .taken_over = payload[0] == kTakenOverFlag};
}

absl::Status About(const absl::Status& status, absl::string_view name) {
  return platform::Annotate(status, absl::StrCat("kept memory \"", name, "\""));
}

absl::Status Broken(platform::Channel& channel,
                    const platform::Message& message) {
  channel.Close();
  return absl::DataLossError(
      absl::StrCat("the keeper answered with a message of type 0x",
                   absl::Hex(message.type), " and ", message.payload.size(),
                   " bytes that was not asked for; the connection is closed"));
}

}  // namespace vmm::keeper
