// hello DRIVER            allocates 1 GiB, prints a ticket, waits for Enter
// hello DRIVER TICKET     opens it in another process, read-only
#include <iostream>
#include <string>

#include "absl/time/clock.h"
#include "vmm/vmm.h"

// DRIVER is "system", or the path of the host-memory driver.
absl::Status Run(const std::string& name, const std::string& ticket) {
  using vmm::platform::Driver;
  auto driver =
      name == "system" ? Driver::LoadSystem() : Driver::LoadFrom(name);
  if (!driver.ok()) return driver.status();
  std::cout << driver->Describe() << std::endl;

  if (!ticket.empty()) {
    auto memory =
        vmm::OpenTicket(*driver, ticket, {}, absl::Now() + absl::Seconds(10));
    if (!memory.ok()) return memory.status();
    std::cout << "opened " << memory->ticket().Describe() << std::endl;
    return absl::OkStatus();  // memory->address() was a device pointer to it.
  }

  auto device = vmm::Device::ByOrdinal(*driver, 0);
  if (!device.ok()) return device.status();
  auto memory = vmm::Allocation::Create(*device, {.size = 1 << 30});
  if (!memory.ok()) return memory.status();
  auto endpoint = vmm::Endpoint::Start({});
  if (!endpoint.ok()) return endpoint.status();
  auto published = (*endpoint)->Publish(memory->shareable());
  if (!published.ok()) return published.status();
  std::cout << published->ticket() << std::endl;
  std::cin.get();
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const absl::Status status =
      Run(argc > 1 ? argv[1] : "system", argc > 2 ? argv[2] : "");
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
