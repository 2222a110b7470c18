#include "tests/soak/part.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/how_many.h"

namespace vmm::testing {

using platform::Channel;
using platform::Message;

namespace {

absl::StatusOr<std::string> TextBy(Channel& other, absl::Time deadline) {
  absl::StatusOr<Message> message = other.Receive(deadline);
  if (!message.ok()) return message.status();
  return std::string(message->payload.begin(), message->payload.end());
}

}  // namespace

bool HasFailed() {
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}

absl::Status Say(Channel& other, const std::string& text) {
  return other.Send(
      kText, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
      {}, Late());
}

absl::StatusOr<std::string> Listen(Channel& other) {
  return TextBy(other, Late());
}

absl::StatusOr<std::string> Request(Channel& other, const std::string& text) {
  const absl::Status said = Say(other, text);
  if (!said.ok()) return said;
  return Listen(other);
}

int Play(Channel& orders, const Part& part) {
  const absl::Time never = absl::InfiniteFuture();
  while (TextBy(orders, never).ok()) {  // "go"
    std::uint64_t steps = 0;
    absl::StatusOr<std::string> rest = absl::DeadlineExceededError("");
    while (absl::IsDeadlineExceeded(rest.status())) {
      if (part.step) {
        part.step();
        ++steps;
      }
      if (HasFailed()) return 1;
      rest = TextBy(orders, part.step ? absl::InfinitePast() : never);
    }
    if (!rest.ok()) return 0;
    part.rest();
    if (HasFailed() || !Say(orders, absl::StrCat(steps)).ok()) return 1;
  }
  return 0;
}

Dice::Dice()
    : engine_(HowMany("VMMSHARE_SEED", 1) * 0x9e3779b97f4a7c15 +
              platform::CurrentProcessId()) {}

void WritePatternOn(CUstream stream, CUdeviceptr at, std::size_t size,
                    std::uint64_t seed) {
  const std::vector<std::uint8_t> bytes = Pattern(seed, size);
  EXPECT_EQ(TestDriver()->cuMemcpyHtoDAsync(at, bytes.data(), size, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
}

void ExpectPatternOn(CUstream stream, CUdeviceptr at, std::size_t size,
                     std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(size);
  EXPECT_EQ(TestDriver()->cuMemcpyDtoHAsync(bytes.data(), at, size, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(bytes == Pattern(seed, size)) << "pattern " << seed;
}

}  // namespace vmm::testing
