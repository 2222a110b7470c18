// Layout: how the elements of an array lie in a block, and its bytes in a
// ticket. Peers send tickets, so what they say is checked against the block.
#ifndef VMMSHARE_VMM_PYTHON_CORE_LAYOUT_H_
#define VMMSHARE_VMM_PYTHON_CORE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vmm/c/pool.h"
#include "vmm/python/core/dtype.h"

namespace vmm::python {

inline constexpr std::size_t kMaxDimensions = 32;

struct Layout {
  const DType* dtype = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // In elements, none below 0.
  std::uint64_t offset = 0;           // Bytes into the block.

  std::int64_t elements() const;
};

// Bytes of a dense array. Nothing when a length is below 0 or it overflows.
std::optional<std::uint64_t> DenseBytes(const std::vector<std::int64_t>& shape,
                                        std::int64_t itemsize);
// Row-major. REQUIRES: DenseBytes() has a value.
std::vector<std::int64_t> DenseStrides(const std::vector<std::int64_t>& shape);

// From the first byte of the first element to the last byte of the last one; 0
// where there is none. Nothing when it overflows. REQUIRES: neither lengths nor
// strides below 0.
std::optional<std::uint64_t> SpanBytes(const Layout& layout);

// Empty when every element lies within `size` bytes and where its type may lie;
// otherwise what is wrong. Total: no value of the layout overflows.
std::string WhyOutside(const Layout& layout, std::uint64_t size);

// Why bytes are refused: INVALID_ARGUMENT, or UNIMPLEMENTED for those of a newer
// version.
struct Refusal {
  vmmshare_status status = VMMSHARE_OK;
  std::string why;
};
inline Refusal Malformed(std::string why) {
  return {VMMSHARE_INVALID_ARGUMENT, std::move(why)};
}

// Lengths and strides, as they are sent; reading them shortens `bytes`.
void PutDimensions(std::string* out, const Layout& layout);
Refusal TakeDimensions(std::string_view* bytes, std::uint8_t dtype,
                       std::size_t count, Layout* layout);

// An array's ticket: docs/wire_format.md has the table.
inline constexpr std::size_t kArrayTicketHead = 72;
struct ArrayTicket {
  Layout layout;
  std::uint8_t block[VMMSHARE_BLOCK_TICKET_BYTES];
};
std::string EncodeArrayTicket(const ArrayTicket& ticket);
// Reads one from the front of `bytes`, which it shortens. Total. What it says is
// not checked against a block yet.
Refusal DecodeArrayTicket(std::string_view* bytes, ArrayTicket* ticket);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_LAYOUT_H_
