// The owner's end of a connection to an importer's process.
#ifndef VMMSHARE_BENCH_COMPARE_LINK_H_
#define VMMSHARE_BENCH_COMPARE_LINK_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/compare/options.h"
#include "bench/compare/route.h"
#include "bench/compare/wire.h"
#include "docs/examples/process.h"
#include "platform/ipc/channel.h"

namespace bench::compare {

class Link {
 public:
  // Starts a process that imports on device `at`. `place` names that in
  // tables: "same GPU", "peer GPU".
  static absl::StatusOr<std::unique_ptr<Link>> Start(const Options& options,
                                                     int at, std::string place);
  // With an importer that somebody else started.
  explicit Link(vmm::platform::Channel channel)
      : channel_(std::move(channel)) {}

  // Sends a request and waits for the answer.
  absl::StatusOr<Answer> Ask(MessageType type, const Writer& request);
  // Asks about one route, with nothing else to say.
  absl::StatusOr<Answer> Ask(MessageType type, const Route& route);
  // Opens the importer's half.
  absl::StatusOr<Answer> Open(const Route& route, const Introduction& owner);

  // Hangs up and waits until the importer has ended; an error when it did not
  // end well.
  absl::Status End();

  vmm::platform::Channel& channel() { return channel_; }
  const std::string& place() const { return place_; }
  // "same" or "peer", for names in JSON.
  std::string key() const { return place_.substr(0, 4); }

 private:
  Link(vmm::platform::Channel channel, examples::ChildProcess child,
       std::string place)
      : child_(std::move(child)),
        channel_(std::move(channel)),
        place_(std::move(place)) {}

  std::optional<examples::ChildProcess> child_;
  vmm::platform::Channel channel_;
  std::string place_;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_LINK_H_
