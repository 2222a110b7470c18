#include "platform/hostdriver/memory_label.h"

#include <algorithm>

namespace vmm::hostdriver {
namespace {

constexpr std::string_view kMagic = "vmmhost1.";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::size_t kIdDigits = 16;

bool HasId(MemoryLabel::Kind kind) {
  return kind == MemoryLabel::Kind::kBlock ||
         kind == MemoryLabel::Kind::kPooled || kind == MemoryLabel::Kind::kPool;
}

}  // namespace

std::string UuidHex(const Uuid& uuid) {
  std::string text;
  for (std::uint8_t byte : uuid) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

std::string LabelText(const MemoryLabel& label) {
  std::string text(kMagic);
  text += label.instance;
  text += '.';
  text += UuidHex(label.uuid);
  text += '.';
  text += static_cast<char>(label.kind);
  text += label.rdma ? '1' : '0';
  text += kHexDigits[label.compression & 15];
  if (HasId(label.kind)) {
    for (std::size_t i = kIdDigits; i > 0; --i) {
      text += kHexDigits[label.id >> (4 * (i - 1)) & 15];
    }
  }
  return text;
}

std::optional<MemoryLabel> ParseLabel(std::string_view text) {
  if (text.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  text.remove_prefix(kMagic.size());
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  MemoryLabel label;
  label.instance = std::string(text.substr(0, dot));
  if (!IsInstanceName(label.instance)) return std::nullopt;
  text.remove_prefix(dot + 1);
  if (text.size() < 32 + 1 + 3 || text[32] != '.') return std::nullopt;
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t digit = kHexDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    label.uuid[i / 2] =
        static_cast<std::uint8_t>(label.uuid[i / 2] << 4 | digit);
  }
  const char kind = text[33];
  if (std::string_view("dnhbpq").find(kind) == std::string_view::npos) {
    return std::nullopt;
  }
  label.kind = static_cast<MemoryLabel::Kind>(kind);
  if (text[34] != '0' && text[34] != '1') return std::nullopt;
  label.rdma = text[34] == '1';
  const std::size_t compression = kHexDigits.find(text[35]);
  if (compression == std::string_view::npos) return std::nullopt;
  label.compression = static_cast<std::uint8_t>(compression);
  text.remove_prefix(36);
  if (text.size() != (HasId(label.kind) ? kIdDigits : 0)) return std::nullopt;
  for (const char c : text) {
    const std::size_t digit = kHexDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    label.id = label.id << 4 | digit;
  }
  return label;
}

bool IsInstanceName(std::string_view text) {
  return !text.empty() && text.size() <= 32 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '-' || c == '_';
         });
}

}  // namespace vmm::hostdriver
