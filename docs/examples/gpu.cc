#include "docs/examples/gpu.h"

#include <cstdint>
#include <utility>

namespace examples {

absl::StatusOr<Gpu> UseGpu(const vmm::platform::Driver& driver,
                           const CommandLine& line) {
  absl::StatusOr<std::uint64_t> ordinal = line.Number("device", 0);
  if (!ordinal.ok()) return ordinal.status();
  absl::StatusOr<vmm::Device> device =
      vmm::Device::ByOrdinal(driver, static_cast<int>(*ordinal));
  if (!device.ok()) return device.status();
  absl::StatusOr<vmm::PrimaryContext> context =
      vmm::PrimaryContext::Retain(*device);
  if (!context.ok()) return context.status();
  absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
  if (!current.ok()) return current.status();
  return Gpu{*std::move(device), *std::move(context), *std::move(current)};
}

}  // namespace examples
