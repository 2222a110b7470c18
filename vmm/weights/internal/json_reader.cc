#include "vmm/weights/internal/json_reader.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/base/utf8.h"

namespace vmm::weights {
namespace {

// What stands for itself within a text.
bool IsPlain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
}

}  // namespace

absl::Status JsonReader::Wrong(absl::string_view expected) const {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, " at byte ", at_));
}

void JsonReader::SkipSpace() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' ||
                                text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

bool JsonReader::Take(char wanted) {
  SkipSpace();
  if (at_ == text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

absl::Status JsonReader::ReadObject(
    absl::FunctionRef<absl::Status(std::string)> member) {
  if (!Take('{')) return Wrong("an object");
  if (Take('}')) return absl::OkStatus();
  do {
    ASSIGN_OR_RETURN(std::string name, ReadText());
    if (!Take(':')) return Wrong("\":\"");
    RETURN_IF_ERROR(member(std::move(name)));
  } while (Take(','));
  return Take('}') ? absl::OkStatus() : Wrong("\",\" or \"}\"");
}

absl::Status JsonReader::ReadArray(absl::FunctionRef<absl::Status()> item) {
  if (!Take('[')) return Wrong("an array");
  if (Take(']')) return absl::OkStatus();
  do {
    RETURN_IF_ERROR(item());
  } while (Take(','));
  return Take(']') ? absl::OkStatus() : Wrong("\",\" or \"]\"");
}

absl::StatusOr<std::string> JsonReader::ReadText() {
  if (!Take('"')) return Wrong("a text");
  std::string out;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] == '\\') {
      RETURN_IF_ERROR(ReadEscape(&out));
      continue;
    }
    const std::size_t begin = at_;
    while (at_ < text_.size() && IsPlain(text_[at_])) ++at_;
    if (at_ == begin) {
      const std::size_t length =
          platform::Utf8SequenceLength(text_.substr(at_));
      if (length < 2) return Wrong("UTF-8 without control characters");
      at_ += length;
    }
    absl::StrAppend(&out, text_.substr(begin, at_ - begin));
  }
  if (at_ == text_.size()) return Wrong("the end of a text");
  ++at_;
  return out;
}

absl::Status JsonReader::ReadEscape(std::string* out) {
  constexpr absl::string_view kLetters = "\"\\/bfnrt";
  constexpr absl::string_view kMeant = "\"\\/\b\f\n\r\t";
  ++at_;
  if (at_ < text_.size() && text_[at_] == 'u') {
    ASSIGN_OR_RETURN(std::uint32_t point, ReadUnit());
    if (point >= 0xd800 && point <= 0xdbff && text_.substr(at_, 2) == "\\u") {
      ++at_;
      ASSIGN_OR_RETURN(const std::uint32_t low, ReadUnit());
      if (low < 0xdc00 || low > 0xdfff) return Wrong("a low surrogate before");
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    if (point == 0 || (point >= 0xd800 && point <= 0xdfff)) {
      return Wrong("no NUL and no lone surrogate before");
    }
    platform::AppendUtf8(point, out);
    return absl::OkStatus();
  }
  const std::size_t letter =
      at_ < text_.size() ? kLetters.find(text_[at_]) : kLetters.npos;
  if (letter == kLetters.npos) return Wrong("an escape");
  ++at_;
  out->push_back(kMeant[letter]);
  return absl::OkStatus();
}

absl::StatusOr<std::uint32_t> JsonReader::ReadUnit() {
  ++at_;  // The "u".
  // Where fewer are left the text has no end, and is refused for that.
  const absl::string_view digits = text_.substr(at_, 4);
  std::uint32_t unit = 0;
  for (const char digit : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) {
      return Wrong("four hexadecimal digits");
    }
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(digit));
    const int value = lower <= '9' ? lower - '0' : lower - 'a' + 10;
    unit = unit << 4 | static_cast<std::uint32_t>(value);
  }
  at_ += digits.size();
  return unit;
}

absl::StatusOr<std::int64_t> JsonReader::ReadCount() {
  SkipSpace();
  std::size_t end = at_;
  while (end < text_.size() &&
         absl::ascii_isdigit(static_cast<unsigned char>(text_[end]))) {
    ++end;
  }
  const absl::string_view digits = text_.substr(at_, end - at_);
  std::int64_t count = 0;
  // Behind digits a fraction or an exponent is the caller's: no "," or "]".
  if ((digits.size() > 1 && digits[0] == '0') ||
      !absl::SimpleAtoi(digits, &count)) {
    return Wrong("an integer from 0 to 2^63 - 1");
  }
  at_ = end;
  return count;
}

absl::Status JsonReader::ReadEnd() {
  SkipSpace();
  return at_ == text_.size() ? absl::OkStatus() : Wrong("the end");
}

}  // namespace vmm::weights
