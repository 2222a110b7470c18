#include "vmm/python/core/layout.h"

#include <algorithm>
#include <cstring>

#include "vmm/python/core/bytes.h"

namespace vmm::python {
namespace {

// "VAT", and in the highest byte of the word the version.
constexpr std::uint32_t kMagic = 0x544156;
constexpr std::uint32_t kVersion = 1;

}  // namespace

std::int64_t Layout::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t length : shape) count *= length;
  return count;
}

std::optional<std::uint64_t> DenseBytes(const std::vector<std::int64_t>& shape,
                                        std::int64_t itemsize) {
  std::int64_t bytes = itemsize;
  bool empty = false;
  for (const std::int64_t length : shape) {
    if (length < 0) return std::nullopt;
    empty = empty || length == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(length, 1),
                               &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

std::vector<std::int64_t> DenseStrides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

std::optional<std::uint64_t> SpanBytes(const Layout& layout) {
  // An empty array has no last element, whatever its strides are.
  if (std::find(layout.shape.begin(), layout.shape.end(), 0) !=
      layout.shape.end()) {
    return 0;
  }
  std::int64_t last = 0;
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(layout.shape[i] - 1, layout.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  std::int64_t end = 0;
  if (__builtin_add_overflow(last, 1, &end) ||
      __builtin_mul_overflow(end, layout.dtype->itemsize(), &end)) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(end);
}

std::string WhyOutside(const Layout& layout, std::uint64_t size) {
  const std::int64_t itemsize = layout.dtype->itemsize();
  if (!DenseBytes(layout.shape, itemsize).has_value()) {
    return "its shape has a length below 0, or more elements than there are "
           "numbers";
  }
  if (layout.offset % static_cast<std::uint64_t>(itemsize) != 0) {
    return "it begins at " + std::to_string(layout.offset) +
           " bytes, which is no multiple of its element's " +
           std::to_string(itemsize);
  }
  for (const std::int64_t stride : layout.strides) {
    if (stride < 0) return "a stride is below 0";
  }
  const std::optional<std::uint64_t> span = SpanBytes(layout);
  if (!span.has_value()) return "its shape and strides overflow";
  const std::uint64_t needed = *span;
  if (layout.offset > size || needed > size - layout.offset) {
    return "it takes " + std::to_string(needed) + " bytes from " +
           std::to_string(layout.offset) + " on, and the block has " +
           std::to_string(size);
  }
  return "";
}

void PutDimensions(std::string* out, const Layout& layout) {
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    Put(out, static_cast<std::uint64_t>(layout.shape[i]));
    Put(out, static_cast<std::uint64_t>(layout.strides[i]));
  }
}

Refusal TakeDimensions(std::string_view* bytes, std::uint8_t dtype,
                       std::size_t count, Layout* layout) {
  layout->dtype = FindDType(dtype);
  if (layout->dtype == nullptr) {
    return Malformed("dtype number " + std::to_string(dtype) + " is not known");
  }
  if (count > kMaxDimensions) {
    return Malformed(std::to_string(count) + " dimensions; at most " +
                     std::to_string(kMaxDimensions));
  }
  if (bytes->size() < 16 * count) return Malformed("it is cut");
  layout->shape.resize(count);
  layout->strides.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    layout->shape[i] = static_cast<std::int64_t>(Take<std::uint64_t>(bytes));
    layout->strides[i] = static_cast<std::int64_t>(Take<std::uint64_t>(bytes));
  }
  return {};
}

std::string EncodeArrayTicket(const ArrayTicket& ticket) {
  const Layout& layout = ticket.layout;
  std::string out;
  out.reserve(kArrayTicketHead + 16 * layout.shape.size());
  Put<std::uint32_t>(&out, kMagic | (kVersion << 24));
  Put<std::uint8_t>(&out, layout.dtype->code);
  Put<std::uint8_t>(&out, static_cast<std::uint8_t>(layout.shape.size()));
  Put<std::uint16_t>(&out, 0);
  Put<std::uint64_t>(&out, layout.offset);
  out.append(reinterpret_cast<const char*>(ticket.block), sizeof(ticket.block));
  PutDimensions(&out, layout);
  return out;
}

Refusal DecodeArrayTicket(std::string_view* bytes, ArrayTicket* ticket) {
  if (bytes->size() < kArrayTicketHead) {
    return Malformed(std::to_string(bytes->size()) +
                     " bytes; an array's ticket has " +
                     std::to_string(kArrayTicketHead) + " and more");
  }
  const auto head = Take<std::uint32_t>(bytes);
  if ((head & 0xffffff) != kMagic) {
    return Malformed("it does not begin as an array's ticket does");
  }
  if (head >> 24 != kVersion) {
    return {VMMSHARE_UNIMPLEMENTED, "it has version " +
                                        std::to_string(head >> 24) +
                                        ", and this vmmshare reads version 1"};
  }
  const auto dtype = Take<std::uint8_t>(bytes);
  const std::size_t dimensions = Take<std::uint8_t>(bytes);
  if (Take<std::uint16_t>(bytes) != 0) {
    return Malformed("reserved bytes are not zero");
  }
  ticket->layout.offset = Take<std::uint64_t>(bytes);
  std::memcpy(ticket->block, bytes->data(), sizeof(ticket->block));
  bytes->remove_prefix(sizeof(ticket->block));
  return TakeDimensions(bytes, dtype, dimensions, &ticket->layout);
}

}  // namespace vmm::python
