// Both sides of a ring in one process, for tests of what one process does.
#ifndef VMMSHARE_TESTS_IPC_RING_BOTH_SIDES_H_
#define VMMSHARE_TESTS_IPC_RING_BOTH_SIDES_H_

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "vmm/memory/device.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {

struct RingSides {
  std::unique_ptr<RingHome> home;
  std::unique_ptr<RingReader> reader;
  std::unique_ptr<RingWriter> writer;
};

// Over `ends`. What the first of the two that failed answered.
inline absl::StatusOr<RingSides> OpenBothSides(
    const Device& device, const RingHomeOptions& where,
    const RingOptions& options,
    std::pair<platform::Channel, platform::Channel> ends, absl::Time deadline) {
  RingSides sides;
  absl::StatusOr<std::unique_ptr<RingHome>> home =
      RingHome::Create(device, where);
  if (!home.ok()) return home.status();
  sides.home = *std::move(home);
  absl::StatusOr<std::unique_ptr<RingReader>> reader =
      absl::UnknownError("not opened");
  std::thread reading;
  try {
    reading = std::thread([&, channel = std::move(ends.second)]() mutable {
      reader = RingReader::Open(device, std::move(channel),
                                {.patience = options.patience}, deadline);
    });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(error.what());
  }
  absl::StatusOr<std::unique_ptr<RingWriter>> writer =
      RingWriter::Open(*sides.home, std::move(ends.first), options, deadline);
  reading.join();
  if (!writer.ok()) return writer.status();
  if (!reader.ok()) return reader.status();
  sides.reader = *std::move(reader);
  sides.writer = *std::move(writer);
  return sides;
}

inline absl::StatusOr<RingSides> OpenBothSides(const Device& device,
                                               const RingHomeOptions& where,
                                               const RingOptions& options,
                                               absl::Time deadline) {
  absl::StatusOr<std::pair<platform::Channel, platform::Channel>> ends =
      platform::Channel::Pair();
  if (!ends.ok()) return ends.status();
  return OpenBothSides(device, where, options, *std::move(ends), deadline);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_RING_BOTH_SIDES_H_
