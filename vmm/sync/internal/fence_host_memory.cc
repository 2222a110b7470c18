#include "vmm/sync/internal/fence_memory.h"

namespace vmm::fence {
namespace {

// Between two looks at the clock: that costs more than a look at the fence.
constexpr int kLooks = 64;

class OfTheHost final : public Memory {
 public:
  FencePlace place() const override { return FencePlace::kHostMemory; }

  Progress Glance(CUdeviceptr fence, std::uint64_t base) override {
    return fence::Look(WordsAt(fence), base);
  }

  absl::StatusOr<Progress> Look(CUdeviceptr fence, std::uint64_t base,
                                Deadline) override {
    return fence::Look(WordsAt(fence), base);
  }

  void Linger(CUdeviceptr fence, std::uint64_t raw) override {
    for (int i = 0; i < kLooks; ++i) {
      if (WordsAt(fence).value.load(std::memory_order_relaxed) >= raw) return;
    }
  }

  absl::Status Raise(CUdeviceptr fence, std::uint64_t raw, Deadline) override {
    fence::Raise(WordsAt(fence).value, raw);
    return absl::OkStatus();
  }

  absl::Status Abandon(CUdeviceptr fence, std::uint64_t base,
                       Deadline) override {
    fence::Abandon(WordsAt(fence), base);
    return absl::OkStatus();
  }
};

}  // namespace

Memory& HostMemory() {
  // Never destroyed: threads may wait for fences while the process ends.
  static OfTheHost& memory = *new OfTheHost;
  return memory;
}

Words& WordsAt(CUdeviceptr fence) {
  // Memory of the host has one address for the CPU and the GPUs (measured).
  return *reinterpret_cast<Words*>(static_cast<std::uintptr_t>(fence));
}

}  // namespace vmm::fence
