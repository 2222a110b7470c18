#include "tests/kill/party.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "platform/base/check.h"
#include "platform/base/hex.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/steps.h"

namespace vmm::testing {

Party::Party(platform::Driver driver, const Device& device,
             std::string directory, platform::Channel link,
             platform::Channel second, Patience patience)
    : driver_(std::move(driver)),
      device_(device),
      directory_(std::move(directory)),
      link_(std::move(link)),
      second_(std::move(second)),
      peer_(Must(link_.OpenPeer())),
      patience_(std::move(patience)) {}

bool Party::PeerHasEnded() const { return Must(peer_.HasExited()); }

absl::Status Party::Tell(const std::string& text) {
  return Try("Channel::Send", Again::kNo, [&](absl::Time deadline) {
    return link_.Send(
        kText,
        {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, {},
        deadline);
  });
}

absl::StatusOr<std::string> Party::Hear() {
  absl::StatusOr<platform::Message> message =
      Try("Channel::Receive", Again::kYes,
          [&](absl::Time deadline) { return link_.Receive(deadline); });
  if (!message.ok()) return message.status();
  heard_.emplace_back(message->payload.begin(), message->payload.end());
  return heard_.back();
}

bool Party::HasHeard(const std::string& text) const {
  return std::find(heard_.begin(), heard_.end(), text) != heard_.end();
}

void Party::HearTheRest() {
  while (Hear().ok()) {
  }
}

void Party::PeerIsLost() {
  if (patience_.at_hang_up) {
    std::exchange(patience_.at_hang_up, nullptr)();
  }
}

void Party::NoteTime(const char* what, absl::Duration took) {
  if (took <= measured_.slowest) return;
  measured_.slowest = took;
  measured_.slowest_call = what;
}

void Party::Note(const char* what, const Watch::Reading& reading, bool met) {
  NoteTime(what, reading.took);
  if (met) ++measured_.deadlines_met;
  const absl::Duration late = reading.late - reading.control;
  if (late <= measured_.latest) return;
  measured_.latest = late;
  measured_.latest_call = what;
}

void Contents::Write(std::uint64_t seed) {
  MarkStep("before it writes");
  WritePattern(at_, size_, seed);
  MarkStep("after it wrote");
  seeds_ = {seed};
}

void Contents::Expect(const std::vector<std::uint64_t>& seeds) const {
  std::vector<std::uint8_t> bytes(size_);
  EXPECT_EQ(TestDriver()->cuMemcpyDtoH(bytes.data(), at_, size_), CUDA_SUCCESS);
  EXPECT_EQ(BytesOfNone(bytes, seeds), 0u)
      << "bytes of none of the patterns " << absl::StrJoin(seeds, ", ");
}

std::size_t BytesOfNone(const std::vector<std::uint8_t>& bytes,
                        const std::vector<std::uint64_t>& seeds) {
  std::vector<std::vector<std::uint8_t>> patterns;
  for (std::uint64_t seed : seeds) {
    patterns.push_back(Pattern(seed, bytes.size()));
    if (patterns.back() == bytes) return 0;
  }
  std::size_t foreign = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto is_of = [&](const auto& each) { return each[i] == bytes[i]; };
    if (std::none_of(patterns.begin(), patterns.end(), is_of)) ++foreign;
  }
  return foreign;
}

std::string ToHex(absl::Span<const std::uint8_t> bytes) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::vector<std::uint8_t> FromHex(const std::string& text) {
  const std::string bytes = platform::BytesFromHex(text).value_or("");
  return {bytes.begin(), bytes.end()};
}

}  // namespace vmm::testing
