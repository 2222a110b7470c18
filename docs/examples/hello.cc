// hello DRIVER            allocates 1 GiB, prints a ticket, waits for Enter
// hello DRIVER TICKET     opens it in another process, read-only
//
// DRIVER is "system", or the path of the host-memory driver. README shows the
// bodies of Share() and Open() beside those of docs/examples/python/hello.py.
#include <iostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "vmm/vmm.h"

namespace {

using vmm::Allocation;
using vmm::Device;
using vmm::Endpoint;
using vmm::platform::Driver;

// Two columns want short lines.
// clang-format off
void Share(const Driver& driver) {
  // One process: 1 GiB of its GPU, and a ticket.
  auto gpu = Device::ByOrdinal(driver, 0).value();
  auto memory =
      Allocation::Create(gpu, {.size = 1 << 30}).value();
  auto endpoint = Endpoint::Start({}).value();
  auto share =
      endpoint->Publish(memory.shareable()).value();
  std::cout << share.ticket() << std::endl;
  std::cin.get();
}

void Open(const Driver& driver, const std::string& ticket) {
  // Another process: read-only.
  auto memory =
      vmm::OpenTicket(driver, ticket, {},
                      absl::Now() + absl::Seconds(10))
          .value();
  std::cout << "opened " << memory.ticket().Describe()
            << std::endl;
  // memory.address() is a device pointer to it.
}
// clang-format on

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "system";
  if (name == "--help") {
    std::cout
        << "hello DRIVER          allocates 1 GiB, prints a ticket, waits "
           "for Enter\n"
           "hello DRIVER TICKET   opens it in another process, read-only\n"
           "DRIVER is system, or the path of the host-memory driver.\n";
    return 0;
  }
  try {
    const Driver driver =
        (name == "system" ? Driver::LoadSystem() : Driver::LoadFrom(name))
            .value();
    argc > 2 ? Open(driver, argv[2]) : Share(driver);
    if (!std::cout) {
      std::cerr << "standard output cannot be written to" << std::endl;
      return 1;
    }
  } catch (const absl::BadStatusOrAccess& error) {
    std::cerr << error.status() << std::endl;
    return 1;
  }
  return 0;
}
