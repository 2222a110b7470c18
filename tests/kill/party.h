// Party: one of the two processes of a scene (scenes.h), with what it needs.
//
// The same code plays a part in the process that is killed and in the one that
// survives. The survivor measures its calls.
#ifndef VMMSHARE_TESTS_KILL_PARTY_H_
#define VMMSHARE_TESTS_KILL_PARTY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/process.h"
#include "tests/kill/watch.h"
#include "vmm/memory/device.h"

namespace vmm::testing {

// How a party calls what waits for the other one.
struct Patience {
  // Of each call, until one has met its deadline.
  absl::Duration time = absl::Seconds(20);
  // When a call has met its deadline: has the other one go on, if that stands
  // still. From then on calls have all the time.
  std::function<void()> at_deadline = nullptr;
  // When the other one has hung up.
  std::function<void()> at_hang_up = nullptr;
};

// What the survivor's calls took.
struct Measured {
  absl::Duration slowest = absl::ZeroDuration();
  const char* slowest_call = "";
  // After the deadline, less what a thread that only sleeps was late by.
  absl::Duration latest = absl::ZeroDuration();
  const char* latest_call = "";
  int deadlines_met = 0;
};

enum class Again { kNo, kYes };  // After DEADLINE_EXCEEDED nothing has changed.

class Party {
 public:
  Party(platform::Driver driver, const Device& device, std::string directory,
        platform::Channel link, platform::Channel second, Patience patience);

  const platform::Driver& driver() const { return driver_; }
  const Device& device() const { return device_; }
  // For listeners.
  const std::string& directory() const { return directory_; }
  // The other one. Null if that cannot be said, which ends the test.
  const platform::Process& peer() const { return peer_; }
  bool PeerHasEnded() const;
  // A connection for the library's own use.
  platform::Channel TakeSecond() { return std::move(second_); }
  platform::Channel& link() { return link_; }

  // Makes `call(deadline)`, which may wait for the other party; measured.
  template <typename Call>
  auto Try(const char* what, Again again, Call call)
      -> decltype(call(absl::Time())) {
    for (;;) {
      const absl::Time deadline = absl::Now() + patience_.time;
      Watch watch(deadline);
      auto result = call(deadline);
      const bool met = absl::IsDeadlineExceeded(StatusOf(result));
      Note(what, watch.Stop(), met);
      if (!met || !patience_.at_deadline) return result;
      patience_.time = absl::Seconds(20);
      std::exchange(patience_.at_deadline, nullptr)();
      if (again == Again::kNo) return result;
    }
  }
  // Makes `call()`, which waits for nobody; measured.
  template <typename Call>
  auto Now(const char* what, Call call) -> decltype(call()) {
    const absl::Time start = absl::Now();
    auto result = call();
    NoteTime(what, absl::Now() - start);
    return result;
  }

  // Words to the other party, by a message of the program's own.
  absl::Status Tell(const std::string& text);
  // The next words of the other one, and all that it ever said.
  absl::StatusOr<std::string> Hear();
  bool HasHeard(const std::string& text) const;
  // Takes in what the other one said before it hung up.
  void HearTheRest();
  // The other one is lost: lets the test do what it has to, once.
  void PeerIsLost();

  const Measured& measured() const { return measured_; }

 private:
  static const absl::Status& StatusOf(const absl::Status& status) {
    return status;
  }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }
  void Note(const char* what, const Watch::Reading& reading, bool met);
  void NoteTime(const char* what, absl::Duration took);

  const platform::Driver driver_;
  const Device device_;
  const std::string directory_;
  platform::Channel link_;
  platform::Channel second_;
  platform::Process peer_;
  Patience patience_;
  Measured measured_;
  std::vector<std::string> heard_;
};

// Memory whose contents are checked when this object goes, however a part ends:
// they are one of `seeds`, whoever has died.
class Contents {
 public:
  Contents(CUdeviceptr at, std::uint64_t size, std::vector<std::uint64_t> seeds)
      : at_(at), size_(size), seeds_(std::move(seeds)) {}
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;
  ~Contents() { Expect(seeds_); }
  void Write(std::uint64_t seed);
  void Expect(const std::vector<std::uint64_t>& seeds) const;
  void SetSeeds(std::vector<std::uint64_t> seeds) { seeds_ = std::move(seeds); }

 private:
  const CUdeviceptr at_;
  const std::uint64_t size_;
  std::vector<std::uint64_t> seeds_;
};

// How many of `bytes` are not what any pattern of `seeds` has there. None of what
// is left by whoever was stopped or killed by one of its threads while another
// one wrote a pattern over another.
std::size_t BytesOfNone(const std::vector<std::uint8_t>& bytes,
                        const std::vector<std::uint64_t>& seeds);

// Plain data as text, and back; ends the program for a text that is none.
std::string ToHex(absl::Span<const std::uint8_t> bytes);
std::vector<std::uint8_t> FromHex(const std::string& text);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_KILL_PARTY_H_
