// The wall between C and C++: what every function of the C interface does
// first and last. Nothing that is thrown crosses it.
#ifndef VMMSHARE_VMM_C_INTERNAL_CALL_H_
#define VMMSHARE_VMM_C_INTERNAL_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/os/deadline.h"
#include "vmm/c/base.h"

namespace vmm::c {

// The code of `status`, which is not OK; `error`, if not null, is given the
// rest. Throws bad_alloc.
vmmshare_status Fail(const absl::Status& status, vmmshare_error** error);
// Where the host has no memory, not even to say so: `error` is one that is there.
vmmshare_status FailWithoutMemory(vmmshare_error** error) noexcept;
// INTERNAL, of what was thrown that says `what`.
vmmshare_status FailThrown(const char* what, vmmshare_error** error) noexcept;

// Why a function of the program's failed: what it returned, and what it threw, if
// that said.
absl::Status WhyReturned(absl::string_view name, vmmshare_status status);
absl::Status WhyThrown(absl::string_view name, absl::string_view what);

// Runs `body`, which returns an absl::Status.
template <typename Body>
vmmshare_status Call(vmmshare_error** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    const absl::Status status = body();
    if (ABSL_PREDICT_TRUE(status.ok())) return VMMSHARE_OK;
    return Fail(status, error);
  } catch (const std::bad_alloc&) {
    return FailWithoutMemory(error);
  } catch (const std::exception& thrown) {
    return FailThrown(thrown.what(), error);
  } catch (...) {
    return FailThrown("something unknown was thrown", error);
  }
}

// Calls `function`, which calls a function of the program's, as "`fill`". Nothing
// that this throws goes further: what is between here and the program's call is not
// made for it. What glibc throws to end a thread may not be kept, and ends the
// process, as it would where it came to Call().
template <typename Function>
absl::Status CallOwn(absl::string_view name, const Function& function) {
  try {
    const vmmshare_status status = function();
    if (ABSL_PREDICT_TRUE(status == VMMSHARE_OK)) return absl::OkStatus();
    return WhyReturned(name, status);
  } catch (const std::exception& thrown) {
    return WhyThrown(name, thrown.what());
  } catch (...) {
    return WhyThrown(name, "");
  }
}

// INVALID_ARGUMENT when `pointer`, the argument `name`, is null.
absl::Status CheckGiven(const void* pointer, absl::string_view name);
// The same of a result, which is `none` until there is one.
template <typename T>
absl::Status Clear(T* result, absl::string_view name,
                   std::type_identity_t<T> none = T{}) {
  absl::Status given = CheckGiven(result, name);
  if (given.ok()) *result = none;
  return given;
}

// When a wait of `timeout_ns` from now ends.
Deadline DeadlineOf(std::int64_t timeout_ns);
// `left` of a time that there is. Without an end too it is not VMMSHARE_FOREVER,
// which means that there is no such time.
std::int64_t NanosecondsOf(absl::Duration left);

// Why options of `given` bytes, of which this library knows `known`, are not
// understood; OK when they are. `first` is the size that they had in version 1.
absl::Status CheckOptions(const void* options, std::uint64_t given,
                          std::size_t known, std::size_t first,
                          absl::string_view name);

// What the program said in `options`, or all defaults for null.
template <typename Options>
absl::StatusOr<Options> ReadOptions(const Options* options, std::size_t first,
                                    absl::string_view name) {
  Options read{};
  if (options == nullptr) return read;
  const std::uint64_t given = options->struct_size;
  absl::Status status =
      CheckOptions(options, given, sizeof(Options), first, name);
  if (!status.ok()) return status;
  const std::size_t size = given < sizeof(Options)
                               ? static_cast<std::size_t>(given)
                               : sizeof(Options);
  std::memcpy(&read, options, size);
  return read;
}

// OK when `result`, the argument `name`, is a structure of the program's that
// WriteResult() can fill: given, and of a size that is understood.
template <typename Result>
absl::Status CheckResult(const Result* result, std::size_t first,
                         absl::string_view type, absl::string_view name) {
  absl::Status given = CheckGiven(result, name);
  if (!given.ok()) return given;
  return CheckOptions(result, result->struct_size, sizeof(Result), first, type);
}

// `*result` is `now`, as much of it as the program knows; its size stays.
template <typename Result>
void WriteResult(Result now, Result* result) {
  now.struct_size = result->struct_size;
  std::memcpy(result, &now,
              std::min<std::uint64_t>(sizeof(Result), now.struct_size));
}

}  // namespace vmm::c

// Text for the caller. Made by `new`, freed by vmmshare_text_free().
struct vmmshare_text {
  std::string text;
};

#endif  // VMMSHARE_VMM_C_INTERNAL_CALL_H_
