// PoolPeer: another process that subscribes to a pool and does as it is told.
#ifndef VMMSHARE_TESTS_IPC_POOL_PEER_H_
#define VMMSHARE_TESTS_IPC_POOL_PEER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/child.h"
#include "vmm/pool/pool_ticket.h"

namespace vmm::testing {

// Each method that asks something waits for the answer, which is "OK", another
// text, or an error as absl::Status prints it. What the child expects of memory
// and does not find fails its exit status.
class PoolPeer {
 public:
  // Starts the child. `listener` is where it dials.
  static PoolPeer Start(platform::Listener& listener,
                        const std::map<std::string, std::string>& env = {});

  // `options`: words of "rw" (access) and "here" (mapped for the first device
  // that the child sees).
  std::string Subscribe(const std::string& ticket,
                        const std::string& options = "") {
    return Ask(absl::StrCat("subscribe ", ticket, " ", options));
  }
  // Imports all at once; they get the next numbers.
  std::string Import(absl::Span<const PoolTicket> tickets);
  std::string Import(const PoolTicket& ticket) {
    return Import(absl::MakeConstSpan(&ticket, 1));
  }
  // Block first + i has pattern seed + i, or is written it.
  std::string Expect(std::size_t first, std::size_t count, std::uint64_t seed) {
    return Ask(absl::StrCat("expect ", first, " ", count, " ", seed));
  }
  std::string Write(std::size_t first, std::size_t count, std::uint64_t seed) {
    return Ask(absl::StrCat("write ", first, " ", count, " ", seed));
  }
  std::string ExpectReadOnly(std::size_t number) {
    return Ask(absl::StrCat("read-only ", number));
  }
  std::string ExpectZeros(std::size_t number) {
    return Ask(absl::StrCat("zeros ", number));
  }
  // Each ticket is refused, because its block was freed.
  std::string Refuse(absl::Span<const PoolTicket> tickets);
  std::string ReleaseAll() { return Ask("release"); }
  std::string Unsubscribe() { return Ask("unsubscribe"); }
  std::string Connection() { return Ask("connection"); }
  // Segments mapped now.
  std::size_t Segments();
  // What is weaker about them than about memory of cuMemCreate().
  std::string Weakness() { return Ask("weakness"); }

  // Has it import and give back the tickets that it has been given, over and
  // over and without another word, until it is killed.
  void Churn(absl::Span<const PoolTicket> tickets);

  // Has it import what SendTickets() sends, as it comes and until EndRace():
  // each block that it gets starts with its ticket's generation, for as long
  // as it has it. The others are refused, because they were freed.
  void StartRace() { Tell(channel_, "race", kText); }
  // Waits until it is through with one more message of SendTickets(), which
  // has up to 585 tickets. Empty, or what it found to be wrong.
  std::string AwaitBatch() { return Hear(channel_); }
  struct Raced {
    std::uint64_t imported = 0;
    std::uint64_t refused = 0;
  };
  Raced EndRace();
  void SendTickets(absl::Span<const PoolTicket> tickets);

  // It gives everything back and ends; its exit status.
  int End() {
    channel_.Close();
    return child_.Wait();
  }
  Child& child() { return child_; }
  platform::Channel& channel() { return channel_; }
  std::string Ask(const std::string& command);

 private:
  PoolPeer(Child child, platform::Channel channel)
      : child_(std::move(child)), channel_(std::move(channel)) {}

  Child child_;
  platform::Channel channel_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_POOL_PEER_H_
