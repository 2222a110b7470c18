// JsonReader: JSON whose members the caller knows; internal to vmm/.
//
// What comes in another place than expected is refused and nothing is skipped, so
// neither depth nor memory is up to whoever wrote it. A library for all of JSON would
// be one more dependency of every package, for the one header that is read by it.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_JSON_READER_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace vmm::weights {

// RFC 8259, read once from front to back. Each call takes the value that comes next,
// or returns INVALID_ARGUMENT, which says at which byte what was expected; after an
// error no more is read. Thread-compatible.
class JsonReader {
 public:
  // `text` outlives it.
  explicit JsonReader(absl::string_view text) : text_(text) {}

  // An object: calls `member` with each name, which takes the value. Names may come
  // twice. An error of `member` ends it, and is its error.
  absl::Status ReadObject(absl::FunctionRef<absl::Status(std::string)> member);
  // An array: calls `item` for each, which takes it.
  absl::Status ReadArray(absl::FunctionRef<absl::Status()> item);
  // A text as UTF-8, without a NUL.
  absl::StatusOr<std::string> ReadText();
  // An integer from 0 to 2^63 - 1, without a fraction or an exponent.
  absl::StatusOr<std::int64_t> ReadCount();
  // OK when nothing comes any more.
  absl::Status ReadEnd();

 private:
  void SkipSpace();
  // Takes the next character that is no space if it is `wanted`.
  bool Take(char wanted);
  // The four digits behind "\u".
  absl::StatusOr<std::uint32_t> ReadUnit();
  absl::Status ReadEscape(std::string* out);
  absl::Status Wrong(absl::string_view expected) const;

  const absl::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_JSON_READER_H_
