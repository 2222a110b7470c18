#include "platform/hostdriver/memory_label.h"

#include <algorithm>

namespace vmm::hostdriver {
namespace {

constexpr std::string_view kMagic = "vmmhost1.";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::size_t kIdDigits = 16;
constexpr std::size_t kWordDigits = 8;

bool HasId(MemoryLabel::Kind kind) {
  return kind == MemoryLabel::Kind::kFabric ||
         kind == MemoryLabel::Kind::kBlock ||
         kind == MemoryLabel::Kind::kPooled || kind == MemoryLabel::Kind::kPool;
}

void AppendHex(std::string* text, std::uint64_t value, std::size_t digits) {
  for (std::size_t i = digits; i > 0; --i) {
    *text += kHexDigits[value >> (4 * (i - 1)) & 15];
  }
}

// Takes so many digits off the front of `text`. False when they are not there.
template <typename Number>
bool TakeHex(std::string_view* text, std::size_t digits, Number* value) {
  if (text->size() < digits) return false;
  std::uint64_t taken = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const std::size_t digit = kHexDigits.find((*text)[i]);
    if (digit == std::string_view::npos) return false;
    taken = taken << 4 | digit;
  }
  text->remove_prefix(digits);
  *value = static_cast<Number>(taken);
  return true;
}

// An instance, or an instance and a node of it: "default@node1".
bool IsMachineName(std::string_view text) {
  const std::size_t at = text.find('@');
  return IsInstanceName(text.substr(0, at)) &&
         (at == std::string_view::npos || IsInstanceName(text.substr(at + 1)));
}

bool TakeUuid(std::string_view* text, Uuid* uuid) {
  for (std::uint8_t& byte : *uuid) {
    if (!TakeHex(text, 2, &byte)) return false;
  }
  return true;
}

}  // namespace

std::string UuidHex(const Uuid& uuid) {
  std::string text;
  for (const std::uint8_t byte : uuid) AppendHex(&text, byte, 2);
  return text;
}

std::string LabelPrefix(std::string_view instance, const Uuid& uuid) {
  std::string text(kMagic);
  text += instance;
  text += '.';
  text += UuidHex(uuid);
  text += '.';
  return text;
}

std::string LabelText(const MemoryLabel& label) {
  std::string text = LabelPrefix(label.instance, label.uuid);
  text += static_cast<char>(label.kind);
  text += label.rdma ? '1' : '0';
  text += kHexDigits[label.compression & 15];
  if (HasId(label.kind)) AppendHex(&text, label.id, kIdDigits);
  if (label.kind == MemoryLabel::Kind::kFabric) {
    AppendHex(&text, label.fabric.key, kIdDigits);
    text += UuidHex(label.fabric.cluster);
    AppendHex(&text, label.fabric.clique, kWordDigits);
    AppendHex(&text, label.fabric.channel, kWordDigits);
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
  if (!IsMachineName(label.instance)) return std::nullopt;
  text.remove_prefix(dot + 1);
  if (!TakeUuid(&text, &label.uuid) || text.size() < 3) return std::nullopt;
  const char point = text[0];
  const char kind = text[1];
  const char rdma = text[2];
  text.remove_prefix(3);
  if (point != '.' || (rdma != '0' && rdma != '1') ||
      std::string_view("dfnhbpq").find(kind) == std::string_view::npos) {
    return std::nullopt;
  }
  label.kind = static_cast<MemoryLabel::Kind>(kind);
  label.rdma = rdma == '1';
  if (!TakeHex(&text, 1, &label.compression)) return std::nullopt;
  if (HasId(label.kind) && !TakeHex(&text, kIdDigits, &label.id)) {
    return std::nullopt;
  }
  if (label.kind == MemoryLabel::Kind::kFabric &&
      (!TakeHex(&text, kIdDigits, &label.fabric.key) ||
       !TakeUuid(&text, &label.fabric.cluster) ||
       !TakeHex(&text, kWordDigits, &label.fabric.clique) ||
       !TakeHex(&text, kWordDigits, &label.fabric.channel))) {
    return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return label;
}

bool IsInstanceName(std::string_view text) {
  return !text.empty() && text.size() <= 32 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '-' || c == '_';
         });
}

std::string_view InstanceOf(std::string_view machine) {
  return machine.substr(0, machine.find('@'));
}

}  // namespace vmm::hostdriver
