// A set of arrays in one piece of bytes, by name: what share_all() makes and
// open_all() reads. Each block has one ticket in it, however many arrays lie in
// that. docs/wire_format.md has the table.
#ifndef VMMSHARE_VMM_PYTHON_CORE_ARRAY_SET_H_
#define VMMSHARE_VMM_PYTHON_CORE_ARRAY_SET_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "vmm/python/core/layout.h"

namespace vmm::python {

struct SetEntry {
  // An array without elements may lie in none.
  static constexpr std::uint32_t kNoBlock =
      std::numeric_limits<std::uint32_t>::max();

  std::string_view name;
  std::uint32_t block = kNoBlock;  // Which of the set's tickets.
  std::uint64_t device = 0;        // MarkOf() that of one in none; 0: the host.
  Layout layout;
};

class SetWriter {
 public:
  // `layout.offset` is ignored: the address says it. ValueError for a name
  // above 65,535 bytes. `device` is for an empty one at 0.
  void Add(std::string_view name, std::uint64_t address, const Layout& layout,
           std::uint64_t device = 0);
  // Raises when an address is in no pool of this process.
  std::string Finish();

 private:
  std::vector<std::uint64_t> addresses_;  // But for empty arrays at 0.
  std::vector<std::size_t> places_;       // Where their records begin.
  std::string records_;
  std::uint32_t count_ = 0;
};

// Total. What it reads is not checked against blocks yet.
class SetReader {
 public:
  // INVALID_ARGUMENT, or UNIMPLEMENTED for a set of another version.
  Refusal Start(std::string_view bytes);
  std::uint32_t blocks() const { return blocks_; }
  // blocks() tickets, one after the other.
  const std::uint8_t* tickets() const { return tickets_; }
  std::uint32_t left() const { return left_; }
  // The next of left(). `entry`, which may be used again, refers to the bytes.
  Refusal Next(SetEntry* entry);

 private:
  Refusal CheckEnd() const;

  std::string_view rest_;
  const std::uint8_t* tickets_ = nullptr;
  std::uint32_t blocks_ = 0;
  std::uint32_t left_ = 0;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_ARRAY_SET_H_
