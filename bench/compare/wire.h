// What the owner's process and the importer's say to each other.
//
// Both are this program, started by itself, on one machine: numbers travel as
// they lie in memory. Messages that cannot be understood are errors all the
// same.
#ifndef VMMSHARE_BENCH_COMPARE_WIRE_H_
#define VMMSHARE_BENCH_COMPARE_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "bench/compare/calls.h"
#include "bench/compare/clock.h"
#include "platform/ipc/channel.h"

namespace bench::compare {

enum MessageType : std::uint16_t {
  kOpen = 1,  // route; the introduction. Answered.
  kImport,    // A batch of blocks; errors come with the answer to kFinish.
  kFinish,    // route; bool: whether to read a word of each block. All batches
              // are sent. Answered when all is imported.
  kVerify,    // Checks the contents of all blocks. Answered.
  kCloseAll,  // Closes all blocks. Answered.
  kShut,      // Ends the importer's half of the route. Answered.
  kCopy,      // Copies a block; see CopyRequest. Answered.
  kUsage,     // What the process takes so far, CPU time too. Answered.
  kAnswer,
  kGo,  // To an owner that is to free its memory, or to go on.
};

// Plain data to and from bytes, one after the other.
class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void PutBytes(absl::Span<const std::uint8_t> bytes) {
    Put(static_cast<std::uint32_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void PutText(absl::string_view text) {
    PutBytes({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(absl::Span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (Has(sizeof(T))) {
      std::memcpy(&value, bytes_.data(), sizeof(T));
      bytes_.remove_prefix(sizeof(T));
    }
    return value;
  }
  absl::Span<const std::uint8_t> GetBytes() {
    const auto count = Get<std::uint32_t>();
    if (!Has(count)) return {};
    const auto part = bytes_.subspan(0, count);
    bytes_.remove_prefix(count);
    return part;
  }
  std::string GetText() {
    const absl::Span<const std::uint8_t> bytes = GetBytes();
    return {bytes.begin(), bytes.end()};
  }
  // Whether everything asked for was there.
  bool ok() const { return ok_; }

 private:
  bool Has(std::size_t count) { return ok_ = ok_ && bytes_.size() >= count; }

  absl::Span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

// Of a block in a kImport message; its blob follows, as PutBytes() writes it.
struct BlobHeader {
  std::uint64_t size = 0;
  std::uint32_t word = 0;  // What it is filled with.
  std::uint32_t has_handle = 0;
};

struct ShareOptions {
  bool with_steps = false;  // Times each step of each block.
  bool touch = false;       // Reads a word of each block at the importer.
  // Counts calls, which takes time: times mean nothing then.
  bool count_calls = false;
  // Exports and imports each block by itself, between two clocks of its own.
  bool alone = false;
};

struct ImportHeader {
  std::uint32_t route = 0;
  std::uint32_t count = 0;
  std::int64_t sent_at = 0;
  ShareOptions options;
  std::uint32_t zero = 0;
};

struct CopyRequest {
  std::uint32_t route = 0;
  std::uint32_t local = 0;  // Copies local memory instead.
  std::uint64_t size = 0;
  std::uint32_t times = 0;
  std::uint32_t zero = 0;
};

struct Usage {
  std::uint64_t address_space = 0;
  std::uint64_t handles = 0;
};

// Numbers mean what the request says; 0 where it says nothing. Plain: it
// travels as it lies.
struct Figures {
  std::uint64_t count = 0;   // Blocks.
  double wall_ns = 0;        // Of the work itself.
  double process_ns = 0;     // CPU time of the whole process.
  double transport_ns = 0;   // From sending to having received, the last.
  double touch_ns = 0;       // Within `done_at`, not within `wall_ns`.
  std::int64_t done_at = 0;  // NowNs() at the end.
  Usage usage;
  CallCounts calls;
  Steps steps;
};

struct Answer : Figures {
  std::vector<double> lots;  // ns a block, of each lot of kLot blocks, or of
                             // each block where it is imported alone.
};

absl::Status Send(vmm::platform::Channel& channel, MessageType type,
                  const Writer& writer);
// The error or the answer that the peer sends.
absl::Status SendAnswer(vmm::platform::Channel& channel,
                        const absl::Status& status, const Answer& answer);
absl::StatusOr<Answer> ReceiveAnswer(vmm::platform::Channel& channel);

// No step takes longer.
inline absl::Time Deadline() { return absl::Now() + absl::Minutes(5); }

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_WIRE_H_
