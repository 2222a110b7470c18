#include "vmm/tool/json.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/check.h"
#include "platform/base/utf8.h"

namespace vmm::tool {
namespace {

void PrintText(absl::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const std::size_t length = platform::Utf8SequenceLength(text);
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
