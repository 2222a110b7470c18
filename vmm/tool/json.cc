#include "vmm/tool/json.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/check.h"

namespace vmm::tool {
namespace {

// How many bytes the UTF-8 sequence at the front of `text` has; 0 when there
// is none: a lone or overlong byte, a surrogate, or past U+10FFFF.
std::size_t SequenceLength(absl::string_view text) {
  const auto at = [text](std::size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = at(0);
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xbf;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() < length || at(1) < low || at(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xbf) return 0;
  }
  return length;
}

void PrintText(absl::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const std::size_t length = SequenceLength(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out->append("\\ufffd");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      absl::StrAppend(out, text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out->push_back('"');
}

void NewLine(int depth, std::string* out) {
  out->push_back('\n');
  out->append(static_cast<std::size_t>(depth) * 2, ' ');
}

}  // namespace

Json& Json::Add(absl::string_view name, Json value) {
  Members* members = std::get_if<Members>(&value_);
  platform::Check(members != nullptr, "Json::Add() needs an object");
  for (const auto& [known, unused] : *members) {
    platform::Check(known != name, "Json::Add() of a name that is there");
  }
  members->emplace_back(std::string(name), std::move(value));
  return *this;
}

Json& Json::Append(Json value) {
  Items* items = std::get_if<Items>(&value_);
  platform::Check(items != nullptr, "Json::Append() needs an array");
  items->push_back(std::move(value));
  return *this;
}

std::string Json::Print() const {
  std::string out;
  PrintTo(0, &out);
  out.push_back('\n');
  return out;
}

void Json::PrintTo(int depth, std::string* out) const {
  if (const bool* value = std::get_if<bool>(&value_)) {
    out->append(*value ? "true" : "false");
  } else if (const auto* number = std::get_if<std::int64_t>(&value_)) {
    absl::StrAppend(out, *number);
  } else if (const auto* text = std::get_if<std::string>(&value_)) {
    PrintText(*text, out);
  } else if (const auto* items = std::get_if<Items>(&value_)) {
    out->push_back('[');
    for (const Json& item : *items) {
      if (&item != &items->front()) out->push_back(',');
      NewLine(depth + 1, out);
      item.PrintTo(depth + 1, out);
    }
    if (!items->empty()) NewLine(depth, out);
    out->push_back(']');
  } else if (const auto* members = std::get_if<Members>(&value_)) {
    out->push_back('{');
    for (const auto& member : *members) {
      if (&member != &members->front()) out->push_back(',');
      NewLine(depth + 1, out);
      PrintText(member.first, out);
      out->append(": ");
      member.second.PrintTo(depth + 1, out);
    }
    if (!members->empty()) NewLine(depth, out);
    out->push_back('}');
  } else {
    out->append("null");
  }
}

}  // namespace vmm::tool
