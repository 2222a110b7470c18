#include "docs/examples/gpu.h"

#include <utility>

#include "absl/flags/flag.h"
#include "docs/examples/support.h"

namespace examples {

absl::StatusOr<Gpu> UseGpu(const vmm::platform::Driver& driver) {
  absl::StatusOr<vmm::Device> device =
      vmm::Device::ByOrdinal(driver, absl::GetFlag(FLAGS_device));
  if (!device.ok()) return device.status();
  absl::StatusOr<vmm::PrimaryContext> context =
      vmm::PrimaryContext::Retain(*device);
  if (!context.ok()) return context.status();
  absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
  if (!current.ok()) return current.status();
  return Gpu{*std::move(device), *std::move(context), *std::move(current)};
}

}  // namespace examples
