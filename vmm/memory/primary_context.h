// PrimaryContext and CurrentContext: a device's primary context, held and made
// current for a scope.
//
// Allocating, exporting, importing and mapping need no context. Copies, fills,
// streams and kernels do; programs that use the CUDA runtime already have it.
#ifndef VMMSHARE_VMM_MEMORY_PRIMARY_CONTEXT_H_
#define VMMSHARE_VMM_MEMORY_PRIMARY_CONTEXT_H_

#include <cuda.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/owned.h"
#include "vmm/memory/device.h"

namespace vmm {

struct ContextUse {
  std::optional<platform::Driver> driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
};

struct RetainedContextTraits {
  using Value = ContextUse;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.context != nullptr; }
  static void Close(const Value& value);
};

struct PushedContextTraits {
  using Value = ContextUse;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.context != nullptr; }
  static void Close(const Value& value);
};

// Makes a context current on the calling thread while it lives, then restores
// the one before. Destroy on the same thread, in reverse order of making.
using CurrentContext = platform::Owned<PushedContextTraits>;

// Makes any context current, for example a stream's.
absl::StatusOr<CurrentContext> MakeCurrent(const platform::Driver& driver,
                                           CUcontext context);

// Holds a reference to the primary context of a device. Move-only.
class PrimaryContext {
 public:
  // Creates the context if nobody has: that costs time and device memory.
  static absl::StatusOr<PrimaryContext> Retain(const Device& device);
  // Whether some part of this process has made it already.
  static absl::StatusOr<bool> IsActive(const Device& device);

  CUcontext context() const { return context_.get().context; }
  absl::StatusOr<CurrentContext> MakeCurrent() const;

 private:
  explicit PrimaryContext(ContextUse use)
      : context_(
            platform::Owned<RetainedContextTraits>::Adopt(std::move(use))) {}

  platform::Owned<RetainedContextTraits> context_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_PRIMARY_CONTEXT_H_
