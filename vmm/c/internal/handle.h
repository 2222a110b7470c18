// Handle: what every handle of the C interface begins with, by which NULL, a
// handle of another type, and one of the parent process are told from it.
#ifndef VMMSHARE_VMM_C_INTERNAL_HANDLE_H_
#define VMMSHARE_VMM_C_INTERNAL_HANDLE_H_

#include <cstdint>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/os/process.h"

namespace vmm::c {

// The types of handles. A value is never used for another.
enum class HandleType : std::uint32_t {
  kDriver = 1,
  kDevice,
  kMemory,
  kServer,
  kShare,
  kChannel,
  kPool,
  kImportedPool,
  kBlock,
  kFencePool,
  kFence,
  kKeeper,
  kRingHome,
  kRing,
  kSymmetric,
  kWeightsLayout,
  kWeightsWriter,
  kWeights,
  kFetched,
  kRestorable,
  kRegion,
  kFenceArray,
  kSafetensors,
};

// "vmmshare_driver".
absl::string_view NameOf(HandleType type);

template <HandleType type>
class Handle {
 public:
  static constexpr HandleType kType = type;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  bool is_sound() const { return mark_ == kMark; }
  bool is_of_this_process() const { return made_.is_still_here(); }

 protected:
  Handle() = default;
  // What was closed is most often told from a handle until its memory is used
  // again. A store to what goes away would be left out by the compiler.
  ~Handle() { *const_cast<volatile std::uint32_t*>(&mark_) = 0; }

 private:
  // "vmm" and the type: not what other memory begins with by accident.
  static constexpr std::uint32_t kMark =
      0x766d6d00 | static_cast<std::uint32_t>(type);
  std::uint32_t mark_ = kMark;
  const platform::MadeHere made_;
};

// Why a handle of `type` cannot be used. Never OK.
absl::Status WhyNoHandle(HandleType type, bool null, bool sound);

// OK when `handle` can be used in this process.
template <typename T>
absl::Status Check(const T* handle) {
  if (ABSL_PREDICT_TRUE(handle != nullptr && handle->is_sound() &&
                        handle->is_of_this_process())) {
    return absl::OkStatus();
  }
  return WhyNoHandle(T::kType, handle == nullptr,
                     handle != nullptr && handle->is_sound());
}

// `*result` is the handle of what was `made`.
template <typename T, typename Made>
absl::Status Make(T** result, absl::StatusOr<Made> made) {
  if (ABSL_PREDICT_FALSE(!made.ok())) return std::move(made).status();
  *result = new T(*std::move(made));
  return absl::OkStatus();
}

// What each _close() does: destroys a handle, its parent's too in a forked child.
// Nothing with NULL, nor with a handle of another type, of which this would destroy
// what is not there.
template <typename T>
void Close(T* handle) noexcept {
  if (handle != nullptr && handle->is_sound()) delete handle;
}

}  // namespace vmm::c

#endif  // VMMSHARE_VMM_C_INTERNAL_HANDLE_H_
