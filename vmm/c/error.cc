#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "vmm/c/internal/call.h"

struct vmmshare_error {
  vmmshare_status status = VMMSHARE_OK;
  std::int32_t cuda_result = -1;
  const char* message = "";
  const char* remedy = "";
};

namespace vmm::c {
namespace {

// One that is freed, with the texts that it points to.
struct OwnedError : vmmshare_error {
  OwnedError(vmmshare_status code, std::int32_t result, std::string said,
             std::string to_do)
      : vmmshare_error{code, result, nullptr, nullptr},
        message_text(std::move(said)),
        remedy_text(std::move(to_do)) {
    message = message_text.c_str();
    remedy = remedy_text.c_str();
  }
  const std::string message_text;
  const std::string remedy_text;
};

// Of all calls that had no memory for one of their own. Never written, never freed.
constinit vmmshare_error no_memory = {VMMSHARE_RESOURCE_EXHAUSTED, -1,
                                      "the host had no memory for this call, "
                                      "or to say why it failed. Free memory "
                                      "of the host.",
                                      "Free memory of the host."};

// For errors whose message does not say what to do.
absl::string_view GeneralRemedy(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "Correct the argument that the message names.";
    case absl::StatusCode::kDeadlineExceeded:
      return "Wait longer, or look at what the other process does.";
    case absl::StatusCode::kNotFound:
      return "Check that what the message names is there; of what others "
             "share, that they still run.";
    case absl::StatusCode::kAlreadyExists:
      return "Use what is there, or choose another name.";
    case absl::StatusCode::kPermissionDenied:
      return "Run both processes as the same user, or see `vmmshare doctor`.";
    case absl::StatusCode::kResourceExhausted:
      return "Free memory or handles, or raise the limit that is named.";
    case absl::StatusCode::kFailedPrecondition:
      return "Bring about first what the message asks for.";
    case absl::StatusCode::kUnavailable:
      return "The other process is gone: open again what its successor shares.";
    case absl::StatusCode::kUnimplemented:
      return "Run `vmmshare doctor`: it says what works on this machine.";
    default:
      return "See docs/errors.md, and run `vmmshare doctor`.";
  }
}

// What follows the message's first sentence: that says what happened, the rest what to
// do. A sentence begins behind ". " with a capital, a `name` or a number, which is how
// much of a limit is left; and not in quotes, for names and lists have full stops too.
std::string RemedyOf(const absl::Status& status) {
  const absl::string_view message = status.message();
  bool quoted = false;
  for (std::size_t i = 0; i + 2 < message.size(); ++i) {
    const auto next = static_cast<unsigned char>(message[i + 2]);
    if (message[i] == '"') quoted = !quoted;
    if (!quoted && absl::StartsWith(message.substr(i), ". ") &&
        (absl::ascii_isupper(next) || absl::ascii_isdigit(next) ||
         next == '`')) {
      return std::string(message.substr(i + 2));
    }
  }
  return std::string(GeneralRemedy(status.code()));
}

// Whether base.h has it.
bool IsStatus(int code) {
  return code >= VMMSHARE_OK && code <= VMMSHARE_DATA_LOSS;
}

// A message is a line: what a program or a peer has put into a name is not to be
// taken for another one, nor obeyed by a terminal.
std::string OneLine(absl::string_view text) {
  std::string line;
  while (!text.empty()) {
    const auto byte = [text](std::size_t i) {
      return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    // The second ones are U+0080 to U+009F.
    const std::size_t controls =
        byte(0) < 0x20 || byte(0) == 0x7f                      ? 1
        : byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0 ? 2
                                                               : 0;
    for (std::size_t i = 0; i < controls; ++i) {
      absl::StrAppend(&line, "\\x", absl::Hex(byte(i), absl::kZeroPad2));
    }
    if (controls == 0) line += text.front();
    text.remove_prefix(std::max<std::size_t>(controls, 1));
  }
  return line;
}

}  // namespace

vmmshare_status Fail(const absl::Status& status, vmmshare_error** error) {
  // Abseil has one more, and a function of the program's may have any.
  const vmmshare_status code = IsStatus(status.raw_code())
                                   ? vmmshare_status{status.raw_code()}
                                   : VMMSHARE_UNKNOWN;
  if (error != nullptr) {
    const std::optional<CUresult> result = platform::ResultOf(status);
    *error = new OwnedError(
        code, result.has_value() ? static_cast<std::int32_t>(*result) : -1,
        OneLine(status.message()), OneLine(RemedyOf(status)));
  }
  return code;
}

vmmshare_status FailWithoutMemory(vmmshare_error** error) noexcept {
  if (error != nullptr) *error = &no_memory;
  return no_memory.status;
}

vmmshare_status FailThrown(const char* what, vmmshare_error** error) noexcept {
  try {
    return Fail(absl::InternalError(what), error);
  } catch (const std::bad_alloc&) {
    return FailWithoutMemory(error);
  }
}

absl::Status WhyReturned(absl::string_view name, vmmshare_status status) {
  if (!IsStatus(status)) {
    return absl::UnknownError(
        absl::StrCat("the program's own ", name, " returned ", status,
                     ", which is no vmmshare_status. Have it return one."));
  }
  return absl::Status(static_cast<absl::StatusCode>(status),
                      absl::StrCat("the program's own ", name, " returned ",
                                   vmmshare_status_name(status)));
}

absl::Status WhyThrown(absl::string_view name, absl::string_view what) {
  return absl::InternalError(absl::StrCat("the program's own ", name, " threw",
                                          what.empty() ? "" : ": ", what));
}

absl::Status CheckGiven(const void* pointer, absl::string_view name) {
  if (ABSL_PREDICT_TRUE(pointer != nullptr)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` is NULL. Give the address of one."));
}

Deadline DeadlineOf(std::int64_t timeout_ns) {
  if (timeout_ns == VMMSHARE_FOREVER) return absl::InfiniteFuture();
  if (timeout_ns <= 0) return absl::InfinitePast();
  return Deadline::In(absl::Nanoseconds(timeout_ns));
}

std::int64_t NanosecondsOf(absl::Duration left) {
  return std::min<std::int64_t>(absl::ToInt64Nanoseconds(left),
                                VMMSHARE_FOREVER - 1);
}

absl::Status CheckOptions(const void* options, std::uint64_t given,
                          std::size_t known, std::size_t first,
                          absl::string_view name) {
  // No structure of this interface comes near this: a wild value.
  constexpr std::uint64_t kMostBytes = 4096;
  if (given < first || given > kMostBytes || given % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " of ", given, " bytes; this library knows ", first, " to ",
        known, ". Set struct_size to sizeof(", name, ")."));
  }
  const auto* bytes = static_cast<const unsigned char*>(options);
  for (std::size_t i = known; i < given; ++i) {
    if (bytes[i] == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has an option at byte ", i, " that this library, of version ",
        VMMSHARE_C_VERSION, ", does not know. Install a newer one."));
  }
  return absl::OkStatus();
}

}  // namespace vmm::c

std::int32_t vmmshare_c_version(void) { return VMMSHARE_C_VERSION; }
const char* vmmshare_version(void) { return VMMSHARE_VERSION; }

const char* vmmshare_status_name(vmmshare_status status) {
  static constexpr std::pair<vmmshare_status, const char*> kNames[] = {
      {VMMSHARE_OK, "OK"},
      {VMMSHARE_CANCELLED, "CANCELLED"},
      {VMMSHARE_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
      {VMMSHARE_DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"},
      {VMMSHARE_NOT_FOUND, "NOT_FOUND"},
      {VMMSHARE_ALREADY_EXISTS, "ALREADY_EXISTS"},
      {VMMSHARE_PERMISSION_DENIED, "PERMISSION_DENIED"},
      {VMMSHARE_RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"},
      {VMMSHARE_FAILED_PRECONDITION, "FAILED_PRECONDITION"},
      {VMMSHARE_ABORTED, "ABORTED"},
      {VMMSHARE_OUT_OF_RANGE, "OUT_OF_RANGE"},
      {VMMSHARE_UNIMPLEMENTED, "UNIMPLEMENTED"},
      {VMMSHARE_INTERNAL, "INTERNAL"},
      {VMMSHARE_UNAVAILABLE, "UNAVAILABLE"},
      {VMMSHARE_DATA_LOSS, "DATA_LOSS"},
  };
  for (const auto& [each, name] : kNames) {
    if (each == status) return name;
  }
  return "UNKNOWN";
}

vmmshare_status vmmshare_error_status(const vmmshare_error* error) {
  return error == nullptr ? VMMSHARE_OK : error->status;
}
const char* vmmshare_error_message(const vmmshare_error* error) {
  return error == nullptr ? "" : error->message;
}
const char* vmmshare_error_remedy(const vmmshare_error* error) {
  return error == nullptr ? "" : error->remedy;
}
std::int32_t vmmshare_error_cuda_result(const vmmshare_error* error) {
  return error == nullptr ? -1 : error->cuda_result;
}
void vmmshare_error_free(vmmshare_error* error) {
  if (error == &vmm::c::no_memory) return;
  delete static_cast<vmm::c::OwnedError*>(error);
}

const char* vmmshare_text_get(const vmmshare_text* text) {
  return text == nullptr ? "" : text->text.c_str();
}
void vmmshare_text_free(vmmshare_text* text) { delete text; }
