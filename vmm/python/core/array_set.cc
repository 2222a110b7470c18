#include "vmm/python/core/array_set.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <utility>

#include "vmm/c/pool.h"
#include "vmm/python/core/bytes.h"
#include "vmm/python/core/error.h"

namespace vmm::python {
namespace {

constexpr std::string_view kMagic("VAS", 3);
constexpr std::uint8_t kVersion = 2;
constexpr std::size_t kHead = 16;
constexpr std::size_t kRecordHead = 16;
constexpr std::size_t kTicket = VMMSHARE_BLOCK_TICKET_BYTES;

}  // namespace

void SetWriter::Add(std::string_view name, std::uint64_t address,
                    const Layout& layout, std::uint64_t device) {
  if (name.size() > 0xffff) {
    throw nanobind::value_error("a name has more than 65,535 bytes");
  }
  if (layout.elements() != 0 || address != 0) {
    addresses_.push_back(address);
    places_.push_back(records_.size());
  }
  Put(&records_, SetEntry::kNoBlock);
  Put(&records_, layout.dtype->code);
  Put(&records_, static_cast<std::uint8_t>(layout.shape.size()));
  Put(&records_, static_cast<std::uint16_t>(name.size()));
  Put(&records_, device);
  PutDimensions(&records_, layout);
  records_ += name;
  ++count_;
}

std::string SetWriter::Finish() {
  const std::size_t count = addresses_.size();
  std::string out(kHead + kTicket * count, '\0');
  std::vector<std::uint32_t> which(count);
  std::vector<std::uint64_t> offsets(count);
  std::size_t blocks = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_tickets_around(
        addresses_.data(), count,
        reinterpret_cast<std::uint8_t*>(out.data() + kHead), which.data(),
        offsets.data(), &blocks, error);
  });
  for (std::size_t i = 0; i < count; ++i) {
    PutAt(records_.data() + places_[i], which[i]);
    PutAt(records_.data() + places_[i] + 8, offsets[i]);
  }
  kMagic.copy(out.data(), kMagic.size());
  out[kMagic.size()] = static_cast<char>(kVersion);
  PutAt(out.data() + 4, static_cast<std::uint32_t>(blocks));
  PutAt(out.data() + 8, count_);
  out.resize(kHead + kTicket * blocks);
  return out += records_;
}

Refusal SetReader::Start(std::string_view bytes) {
  if (bytes.size() < kHead) {
    return Malformed(std::to_string(bytes.size()) + " bytes; a set has " +
                     std::to_string(kHead) + " and more");
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Malformed("it does not begin as a set of arrays does");
  }
  const auto version = static_cast<std::uint8_t>(bytes[kMagic.size()]);
  if (version != kVersion) {
    return {VMMSHARE_UNIMPLEMENTED, "it has version " +
                                        std::to_string(version) +
                                        ", and this vmmshare reads version 2"};
  }
  rest_ = bytes.substr(4);
  blocks_ = Take<std::uint32_t>(&rest_);
  left_ = Take<std::uint32_t>(&rest_);
  if (Take<std::uint32_t>(&rest_) != 0) {
    return Malformed("reserved bytes are not zero");
  }
  if (rest_.size() / kTicket < blocks_) return Malformed("the set is cut");
  tickets_ = reinterpret_cast<const std::uint8_t*>(rest_.data());
  rest_.remove_prefix(kTicket * blocks_);
  return left_ == 0 ? CheckEnd() : Refusal{};
}

Refusal SetReader::Next(SetEntry* entry) {
  if (rest_.size() < kRecordHead) return Malformed("the set is cut");
  entry->block = Take<std::uint32_t>(&rest_);
  const auto dtype = Take<std::uint8_t>(&rest_);
  const std::size_t dimensions = Take<std::uint8_t>(&rest_);
  const std::size_t name = Take<std::uint16_t>(&rest_);
  entry->layout.offset = Take<std::uint64_t>(&rest_);
  Refusal wrong = TakeDimensions(&rest_, dtype, dimensions, &entry->layout);
  if (wrong.status != VMMSHARE_OK) return wrong;
  if (rest_.size() < name) return Malformed("the set is cut");
  entry->name = rest_.substr(0, name);
  rest_.remove_prefix(name);
  if (entry->block == SetEntry::kNoBlock) {
    entry->device = std::exchange(entry->layout.offset, 0);
    if (std::find(entry->layout.shape.begin(), entry->layout.shape.end(), 0) ==
        entry->layout.shape.end()) {
      return Malformed("an array with elements lies in no block");
    }
  } else if (entry->block >= blocks_) {
    return Malformed("an array lies in block " + std::to_string(entry->block) +
                     " of " + std::to_string(blocks_));
  }
  return --left_ == 0 ? CheckEnd() : Refusal{};
}

Refusal SetReader::CheckEnd() const {
  if (rest_.empty()) return {};
  return Malformed(std::to_string(rest_.size()) +
                   " bytes follow the set's end");
}

}  // namespace vmm::python
