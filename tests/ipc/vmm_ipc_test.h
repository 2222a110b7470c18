// What the tests of sharing between processes have in common.
#ifndef VMMSHARE_TESTS_IPC_VMM_IPC_TEST_H_
#define VMMSHARE_TESTS_IPC_VMM_IPC_TEST_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "platform/ipc/channel.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/private_directory.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/transfer.h"
#include "vmm/vmm.h"

namespace vmm::testing {

// Messages between a test and its children, beside the library's own.
inline constexpr std::uint16_t kGoOn = 1;
inline constexpr std::uint16_t kText = 2;
inline constexpr std::uint16_t kRawMemory = 3;  // A ticket and its handle.

// How the suites share memory: VMMSHARE_TEST_SHARING=legacy runs them over
// kLegacyIpc, as on machines where no other kind works. Importers then open all
// for writing, which is the one way that it has.
inline bool IsTestOfLegacyIpc() {
  const char* sharing = std::getenv("VMMSHARE_TEST_SHARING");
  return sharing != nullptr && absl::string_view(sharing) == "legacy";
}
inline SharePolicy TestSharing() {
  return IsTestOfLegacyIpc() ? SharePolicy::Require(HandleKind::kLegacyIpc)
                             : SharePolicy::Native();
}
// The least access with which it can be opened.
inline ImportOptions Readable() {
  return {.access = IsTestOfLegacyIpc() ? Access::kReadWrite : Access::kRead};
}

// Bytes that differ between seeds and between places. `size` may be any.
inline std::vector<std::uint8_t> Pattern(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint64_t> words((size + 7) / 8);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  // Pointers, for a build without optimization calls five functions for each
  // place of a vector.
  const std::uint64_t* const end = words.data() + words.size();
  for (std::uint64_t* word = words.data(); word != end; ++word) {
    state = state * 6364136223846793005 + 1442695040888963407;
    *word = state;
  }
  std::vector<std::uint8_t> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), words.data(), size);
  return bytes;
}

inline void WritePattern(CUdeviceptr at, std::size_t size, std::uint64_t seed) {
  const std::vector<std::uint8_t> bytes = Pattern(seed, size);
  EXPECT_EQ(TestDriver()->cuMemcpyHtoD(at, bytes.data(), size), CUDA_SUCCESS);
  EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
}

inline void ExpectPattern(CUdeviceptr at, std::size_t size,
                          std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(size);
  EXPECT_EQ(TestDriver()->cuMemcpyDtoH(bytes.data(), at, size), CUDA_SUCCESS);
  EXPECT_TRUE(bytes == Pattern(seed, size)) << "pattern " << seed;
}

// Of what was opened as Readable(), and where that is less than all.
inline void ExpectReadOnly(CUdeviceptr at) {
  if (IsTestOfLegacyIpc()) return;
  EXPECT_EQ(TestDriver()->cuMemsetD8(at, 0xff, 1), CUDA_ERROR_INVALID_VALUE);
}

// The first device of this process, its context current while this lives.
struct Here {
  Device device = FirstDevice();
  PrimaryContext context = Must(PrimaryContext::Retain(device));
  CurrentContext current = Must(context.MakeCurrent());
};

inline void Tell(platform::Channel& channel, const std::string& text = "",
                 std::uint16_t type = kGoOn) {
  const absl::Status sent = channel.Send(
      type, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
      {}, Late());
  EXPECT_TRUE(sent.ok()) << sent;
}

inline std::string Hear(platform::Channel& channel) {
  const platform::Message message = Must(channel.Receive(Late()));
  return std::string(message.payload.begin(), message.payload.end());
}

// Waits for what another thread or process is about to do.
inline void ExpectSoon(const std::function<bool()>& holds) {
  const absl::Time deadline = Late();
  bool held = holds();
  while (!held && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    held = holds();
  }
  EXPECT_TRUE(held);
}

// By how much `wait`, which waits in vain until the deadline that it is given, is
// late: the least of some tries, as a busy machine lets anybody be late.
inline absl::Duration LeastLate(
    const std::function<void(absl::Time deadline)>& wait) {
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 5 && least >= absl::Milliseconds(50); ++i) {
    const absl::Time deadline = absl::Now() + absl::Milliseconds(20);
    wait(deadline);
    least = std::min(least, absl::Now() - deadline);
  }
  return least;
}

inline platform::Channel Dial(const std::string& address) {
  return Must(platform::Channel::Connect(address, {}, Late()));
}

class IpcTest : public DriverTest {
 protected:
  // The address for children, and their connection.
  const std::string& address() const { return listener_.address(); }
  platform::Listener& listener() { return listener_; }
  platform::Channel Accept() { return Must(listener_.Accept(Late())); }
  const std::string directory() const { return directory_.path(); }
  const std::string listener_directory() const {
    return directory_.for_listeners();
  }

  Allocation Make(std::uint64_t size, std::uint64_t max_chunk = 0) {
    return Must(Allocation::Create(
        device,
        {.size = size, .sharing = TestSharing(), .max_chunk_size = max_chunk}));
  }
  Allocation MakePattern(std::uint64_t size, std::uint64_t seed,
                         std::uint64_t max_chunk = 0) {
    Allocation memory = Make(size, max_chunk);
    WritePattern(memory.address(), memory.size(), seed);
    return memory;
  }

 private:
  PrivateDirectory directory_;
  platform::Listener listener_ = Must(
      platform::Listener::Bind({.directory = directory_.for_listeners()}, {}));
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_VMM_IPC_TEST_H_
